package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// What changed while the watch was broken shows in the list that follows: what is new, what differs, and what is missing.
func TestListsMark(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  func(Store) *objects
		known metav1.Object
		want  track.Dirty
	}{
		{"service", func(s Store) *objects { return s.services }, service("shop", "web"), track.Dirty{Services: names(web), ServiceChanges: 1}},
		{"slice", func(s Store) *objects { return s.slices }, slice("shop", "s", "web"), track.Dirty{Services: names(web), SliceChanges: 1}},
		{"node", func(s Store) *objects { return s.nodes }, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, track.Dirty{Node: true}},
		{"service CIDR", func(s Store) *objects { return s.serviceCIDRs }, &networkingv1.ServiceCIDR{}, track.Dirty{ServiceCIDRs: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := newTracker()
			o := tc.kind(newStore(Config{NodeName: "node-1", Tracker: tracker}))
			for _, step := range []struct {
				name string
				list []any
				want track.Dirty
			}{
				{"new", []any{tc.known}, tc.want}, {"the same", []any{tc.known}, track.Dirty{}},
				{"gone", nil, tc.want}, {"still gone", nil, track.Dirty{}},
			} {
				if err := o.Replace(step.list, "1"); err != nil {
					t.Fatal(err)
				}
				got := tracker.Take()
				got.Since = time.Time{}
				if diff := cmp.Diff(step.want, got); diff != "" {
					t.Errorf("%s: marks (-want +got):\n%s", step.name, diff)
				}
				if len(o.list()) != len(step.list) {
					t.Errorf("%s: %d objects are stored, want %d", step.name, len(o.list()), len(step.list))
				}
			}
		})
	}
}

// What is gone, or belongs to another Service now, isn't found by the Service any more.
func TestSlicesAreFoundByTheirService(t *testing.T) {
	o := newStore(Config{NodeName: "node-1", Tracker: newTracker()}).slices
	found := func(of types.NamespacedName) (list []string) {
		for _, s := range o.of(of) {
			list = append(list, s.Name)
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
		if err := step.do(step.slice); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]string{step.web, step.db}, [][]string{found(web), found(db)}); diff != "" {
			t.Errorf("%s: slices of both (-want +got):\n%s", step.name, diff)
		}
	}
	if len(o.byService) != 0 {
		t.Errorf("%d Services without slices are remembered", len(o.byService))
	}
}

// What is the same needn't be read again.
func TestAStoredSliceIsTheSameUntilItChanges(t *testing.T) {
	s := newStore(Config{NodeName: "node-1", Tracker: newTracker()})
	put := func(name, addr string) {
		t.Helper()
		o := slice("shop", name, "web")
		o.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr}}}
		if err := s.slices.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	put("s-1", "10.0.0.1")
	put("s-2", "10.0.0.2")
	before := s.Stored(web)
	put("s-2", "10.0.0.3")
	after := s.Stored(web)
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("%d slices, then %d, want 2", len(before), len(after))
	}
	if after[0] != before[0] || after[1] == before[1] {
		t.Errorf("the slice that stayed is the same: %v, the one that changed: %v", after[0] == before[0], after[1] == before[1])
	}
	if old, now := before[1].Read().Endpoints[0].Addresses[0], after[1].Read().Endpoints[0].Addresses[0]; old != "10.0.0.2" || now != "10.0.0.3" {
		t.Errorf("read %s, then %s", old, now)
	}
}
