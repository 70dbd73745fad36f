package watch

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A list after a broken watch marks all new, changed and missing objects.
func TestListsMark(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  func(*Store) *objects
		known metav1.Object
		want  track.Dirty
	}{
		{"service", func(s *Store) *objects { return s.services }, service("shop", "web"), track.Dirty{Services: names(web), ServiceChanges: 1}},
		{"slice", func(s *Store) *objects { return s.slices }, slice("shop", "s", "web"), track.Dirty{Services: names(web), SliceChanges: 1}},
		{"node", func(s *Store) *objects { return s.nodes }, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, track.Dirty{Node: true}},
		{"service CIDR", func(s *Store) *objects { return s.serviceCIDRs }, &networkingv1.ServiceCIDR{}, track.Dirty{ServiceCIDRs: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := newTracker()
			o := tc.kind(NewStore(Config{NodeName: "node-1", Tracker: tracker}))
			for _, step := range []struct {
				name string
				list []any
				want track.Dirty
			}{
				{"new", []any{tc.known}, tc.want}, {"the same", []any{tc.known}, track.Dirty{}},
				{"gone", nil, tc.want}, {"still gone", nil, track.Dirty{}},
			} {
				lab.Must(t, o.Replace(step.list, "1"))
				got := tracker.Take()
				got.Since = time.Time{}
				lab.Same(t, step.want, got, "%s: marks", step.name)
				lab.Same(t, len(step.list), len(o.list()), "%s: objects are stored", step.name)
			}
		})
	}
}

// After a slice is deleted or moves to another Service, its old Service no longer has the slice.
func TestSlicesAreFoundByTheirService(t *testing.T) {
	o := NewStore(Config{NodeName: "node-1", Tracker: newTracker()}).slices
	found := func(of types.NamespacedName) (list []string) {
		for _, s := range o.of(of) {
			list = append(list, s.Name.Name)
		}
		return list
	}
	for _, step := range []struct {
		name    string
		do      func(any) error
		slice   *discoveryv1.EndpointSlice
		web, db []string
	}{
		{"added", o.Add, slice("shop", "s-2", "web"), []string{"s-2"}, nil},
		{"another one", o.Add, slice("shop", "s-1", "web"), []string{"s-1", "s-2"}, nil},
		{"changed", o.Update, slice("shop", "s-2", "web"), []string{"s-1", "s-2"}, nil},
		{"moved", o.Update, slice("shop", "s-2", "db"), []string{"s-1"}, []string{"s-2"}},
		{"deleted", o.Delete, slice("shop", "s-1", "web"), nil, []string{"s-2"}},
		{"deleted again", o.Delete, slice("shop", "s-1", "web"), nil, []string{"s-2"}},
		{"without a Service", o.Update, slice("shop", "s-2", ""), nil, nil},
	} {
		lab.Must(t, step.do(step.slice))
		lab.Same(t, [][]string{step.web, step.db}, [][]string{found(web), found(db)}, "%s: slices of both", step.name)
	}
	lab.Same(t, 0, len(o.byService), "Services without slices are stored")
}

// Objects that a caller has got do not change.
func TestObjectsDoNotChange(t *testing.T) {
	s := NewStore(Config{NodeName: "node-1", Tracker: newTracker()})
	put := func(name, addr string) {
		t.Helper()
		o := slice("shop", name, "web")
		o.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr}}}
		lab.Must(t, s.slices.Add(o))
	}
	found := func(o model.Objects) (list []string) {
		for _, s := range o.Slices {
			list = append(list, s.Name.Name+" "+s.Endpoints[0].Addr.String())
		}
		return list
	}
	put("s-1", "10.0.0.1")
	put("s-2", "10.0.0.2")
	put("s-4", "10.0.0.4")
	before := s.Get(web)
	put("s-2", "10.0.0.9")
	put("s-3", "10.0.0.3")
	lab.Must(t, s.slices.Delete(slice("shop", "s-4", "web")))
	lab.Same(t, []string{"s-1 10.0.0.1", "s-2 10.0.0.2", "s-4 10.0.0.4"}, found(before), "slices before the changes")
	lab.Same(t, []string{"s-1 10.0.0.1", "s-2 10.0.0.9", "s-3 10.0.0.3"}, found(s.Get(web)), "slices after the changes")
}
