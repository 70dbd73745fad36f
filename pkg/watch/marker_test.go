package watch

import (
	"fmt"
	"maps"
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

var (
	epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	web   = types.NamespacedName{Namespace: "shop", Name: "web"}
	db    = types.NamespacedName{Namespace: "shop", Name: "db"}
)

func names(list ...types.NamespacedName) map[types.NamespacedName]struct{} {
	set := map[types.NamespacedName]struct{}{}
	for _, name := range list {
		set[name] = struct{}{}
	}
	return set
}

func newTracker() *track.Tracker {
	return track.New(epoch, func() time.Time { return epoch })
}

func TestMarks(t *testing.T) {
	type event struct{ before, after metav1.Object }
	trigger := epoch.Add(time.Second)
	triggered := with(slice("shop", "web-1", "web"), func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger.Format(time.RFC3339Nano)}
	})
	mesh := with(service("shop", "web"), func(s *corev1.Service) { s.Labels = map[string]string{labelServiceProxyName: "mesh"} })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", ResourceVersion: "1"}}
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}

	for _, tc := range []struct {
		name     string
		event    event
		want     track.Dirty
		problems int
	}{
		{
			name:  "service added",
			event: event{nil, service("shop", "web")},
			want:  track.Dirty{Services: names(web), ServiceChanges: 1},
		},
		{
			name:  "service removed",
			event: event{service("shop", "web"), nil},
			want:  track.Dirty{Services: names(web), ServiceChanges: 1},
		},
		{
			name:  "service resynced",
			event: event{service("shop", "web"), service("shop", "web")},
		},
		{
			name: "service changed in an unread field",
			event: event{service("shop", "web"), with(service("shop", "web"), func(s *corev1.Service) {
				s.ResourceVersion, s.Spec.Selector, s.Annotations = "2", map[string]string{"a": "b"}, map[string]string{"a": "b"}
			})},
		},
		{
			name: "service changed",
			event: event{service("shop", "web"), with(service("shop", "web"), func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1"}
			})},
			want: track.Dirty{Services: names(web), ServiceChanges: 1},
		},
		{
			name:  "service given to another proxy",
			event: event{service("shop", "web"), mesh},
			want:  track.Dirty{Services: names(web), ServiceChanges: 1},
		},
		{
			name:  "service of another proxy",
			event: event{nil, mesh},
		},
		{
			name: "service of another proxy changed",
			event: event{mesh, with(mesh, func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1"}
			})},
		},
		{
			name:  "slice added with a trigger",
			event: event{nil, triggered},
			want: track.Dirty{
				Services: names(web), SliceChanges: 1,
				Triggers: map[types.NamespacedName][]track.Trigger{web: {{At: trigger}}},
			},
		},
		{
			name: "IPv6 slice added with a trigger",
			event: event{nil, with(triggered, func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
			})},
			want: track.Dirty{
				Services: names(web), SliceChanges: 1,
				Triggers: map[types.NamespacedName][]track.Trigger{web: {{At: trigger, IPv6: true}}},
			},
		},
		{
			name:  "slice removed: its trigger is that of an older change",
			event: event{triggered, nil},
			want:  track.Dirty{Services: names(web), SliceChanges: 1},
		},
		{
			name: "slice changed but not its trigger",
			event: event{triggered, with(triggered, func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Addresses[0] = "10.0.0.2"
			})},
			want: track.Dirty{Services: names(web), SliceChanges: 1},
		},
		{
			name: "slice changed in an unread field",
			event: event{triggered, with(triggered, func(s *discoveryv1.EndpointSlice) {
				s.ResourceVersion, s.Endpoints[0].Zone = "2", ptr("a")
				s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.9")
			})},
		},
		{
			name:  "slice moves from one service to another",
			event: event{slice("shop", "s", "web"), slice("shop", "s", "db")},
			want:  track.Dirty{Services: names(web, db), SliceChanges: 2},
		},
		{
			name:     "slice loses its service",
			event:    event{slice("shop", "s", "web"), slice("shop", "s", "")},
			want:     track.Dirty{Services: names(web), SliceChanges: 1},
			problems: 1,
		},
		{
			name:     "slice without a service",
			event:    event{nil, slice("shop", "s", "")},
			problems: 1,
		},
		{
			name:  "slice without a service removed",
			event: event{slice("shop", "s", ""), nil},
		},
		{
			name: "slice becomes headless",
			event: event{slice("shop", "s", "web"), with(slice("shop", "s", "web"), func(s *discoveryv1.EndpointSlice) {
				s.Labels[labelHeadless] = ""
			})},
			want: track.Dirty{Services: names(web), SliceChanges: 1},
		},
		{
			name:  "node added",
			event: event{nil, node},
			want:  track.Dirty{Node: true},
		},
		{
			name: "node heartbeat",
			event: event{node, with(node, func(n *corev1.Node) {
				n.ResourceVersion = "2"
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(epoch)}}
			})},
		},
		{
			name: "node moves to another zone",
			event: event{node, with(node, func(n *corev1.Node) {
				n.Labels = map[string]string{corev1.LabelTopologyZone: "b"}
			})},
			want: track.Dirty{Node: true},
		},
		{
			name:  "another node",
			event: event{nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}},
		},
		{
			name:  "service CIDR removed",
			event: event{cidr, nil},
			want:  track.Dirty{ServiceCIDRs: true},
		},
		{
			name: "service CIDR status changed",
			event: event{cidr, with(cidr, func(c *networkingv1.ServiceCIDR) {
				c.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
			})},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var problems []model.Problem
			tracker := newTracker()
			mark := marker{
				nodeName: "node-1", tracker: tracker, redirects: &redirects{},
				report: func(p model.Problem) { problems = append(problems, p) },
			}
			send(t, mark, tc.event.before, tc.event.after)

			got := tracker.Take()
			got.Since = time.Time{}
			lab.Same(t, tc.want, got, "marks")
			if len(problems) != tc.problems {
				t.Errorf("problems = %+v, want %d", problems, tc.problems)
			}
		})
	}
}

// TestRedirectsAreMarked: a slice of a Service marks those Services of its namespace that name it in a local redirect,
// and the store has the slice for them.
func TestRedirectsAreMarked(t *testing.T) {
	tracker := newTracker()
	store := NewStore(Config{Tracker: tracker})
	add := func(to *objects, o metav1.Object) {
		t.Helper()
		lab.Must(t, to.Add(o))
	}
	marked := func(want ...types.NamespacedName) {
		t.Helper()
		got := tracker.Take()
		lab.Same(t, names(want...), got.Services, "marked Services")
	}
	cache := types.NamespacedName{Namespace: "shop", Name: "cache"}
	add(store.services, redirecting("shop", "web", "cache"))
	add(store.services, redirecting("shop", "db", "cache"))
	add(store.services, redirecting("other", "web", "cache"))
	tracker.Take()
	add(store.slices, slice("shop", "cache-1", "cache"))
	marked(cache, web, db)
	for _, name := range []types.NamespacedName{web, db} {
		if got := store.Get(name).Redirect; len(got) != 1 || got[0].Name.Name != "cache-1" {
			t.Errorf("%s has the slices %v", name, got)
		}
	}
	if got := store.Get(types.NamespacedName{Namespace: "other", Name: "web"}).Redirect; len(got) > 0 {
		t.Errorf("a Service has the slices %v of another namespace", got)
	}

	// A redirect of the other Service, or to another one, does not count.
	add(store.services, redirecting("shop", "cache", "web"))
	add(store.services, redirecting("shop", "db", "web"))
	tracker.Take()
	add(store.slices, slice("shop", "web-1", "web"))
	marked(web, cache, db)
	lab.Must(t, store.services.Delete(service("shop", "db")))
	add(store.services, service("shop", "cache"))
	tracker.Take()
	lab.Must(t, store.slices.Delete(slice("shop", "web-1", "web")))
	marked(web)
	add(store.slices, slice("shop", "cache-1", "moved"))
	marked(cache, types.NamespacedName{Namespace: "shop", Name: "moved"}, web)
	lab.Must(t, store.services.Delete(service("shop", "web")))
	lab.Must(t, store.services.Delete(service("other", "web")))
	if left := store.redirects.to; len(left) > 0 {
		t.Errorf("still recorded: %v", left)
	}
}

// redirecting returns a Service with a local redirect.
func redirecting(namespace, name, to string) *corev1.Service {
	return with(service(namespace, name), func(s *corev1.Service) {
		s.Annotations = map[string]string{model.RedirectAnnotation: to}
	})
}

// TestRedirectsToOneServiceAreLimited: the oldest Services count. If the first one that exceeds the limit changes, both
// Services are marked.
func TestRedirectsToOneServiceAreLimited(t *testing.T) {
	tracker := newTracker()
	store := NewStore(Config{Tracker: tracker})
	lab.Must(t, store.slices.Add(slice("shop", "cache-1", "cache")))
	aged := func(seconds int) *corev1.Service {
		return with(redirecting("shop", fmt.Sprintf("s%02d", seconds), "cache"), func(s *corev1.Service) {
			s.CreationTimestamp = metav1.Unix(int64(seconds), 0)
		})
	}
	nameOf := func(seconds int) types.NamespacedName {
		return types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("s%02d", seconds)}
	}
	const most = model.MostRedirects
	check := func(step string, last int, marked ...types.NamespacedName) {
		t.Helper()
		if got := tracker.Take().Services; !maps.Equal(got, names(marked...)) {
			t.Errorf("%s: marked Services %v, want %v", step, got, marked)
		}
		for seconds := range most + 3 {
			o := store.Get(nameOf(seconds))
			if o.Service == nil {
				continue
			}
			if counts := len(o.Redirect) == 1; counts != (seconds <= last) || counts == o.ExcessRedirect {
				t.Errorf("%s: %d slices for %s, excess %v", step, len(o.Redirect), o.Service.Name, o.ExcessRedirect)
			}
		}
	}
	for seconds := most + 1; seconds > 0; seconds-- { // the youngest first
		lab.Must(t, store.services.Add(aged(seconds)))
	}
	tracker.Take()
	check("at first", most)
	lab.Must(t, store.services.Add(aged(most+2)))
	check("a younger one", most, nameOf(most+2))
	lab.Must(t, store.services.Add(aged(0)))
	check("an older one", most-1, nameOf(0), nameOf(most))
	lab.Must(t, store.services.Add(with(aged(3), func(s *corev1.Service) { s.Spec.Ports = nil })))
	check("a change", most-1, nameOf(3))
	lab.Must(t, store.slices.Add(with(slice("shop", "cache-1", "cache"), func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
	})))
	if got := len(tracker.Take().Services); got != 1+most {
		t.Errorf("a slice marks %d Services, want itself and %d others", got, most)
	}
	lab.Must(t, store.services.Delete(aged(3)))
	check("a deletion", most, nameOf(3), nameOf(most))
	lab.Must(t, store.services.Delete(aged(most+1)))
	check("a deletion above the limit", most, nameOf(most+1))
	lab.Must(t, store.services.Delete(aged(4)))
	check("a deletion down to the limit", most+2, nameOf(4), nameOf(most+2))
}

// send sends an event as a store would: nil before is an addition, nil after a deletion.
func send(t *testing.T, mark marker, before, after metav1.Object) {
	t.Helper()
	known := before
	if known == nil {
		known = after
	}
	changed := mark.node
	switch known.(type) {
	case *corev1.Service:
		changed = mark.service
	case *discoveryv1.EndpointSlice:
		changed = mark.slice
	case *networkingv1.ServiceCIDR:
		changed = mark.serviceCIDR
	}
	encoded := func(item metav1.Object) *object {
		if item == nil {
			return nil
		}
		return encodeForTest(t, item)
	}
	changed(encoded(before), encoded(after))
}
