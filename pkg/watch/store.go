package watch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Store holds the objects that a source has read. All methods may be called from any goroutine. The returned objects
// have only the fields that the proxy reads (see transform.go). They never change: do not write to them.
type Store struct {
	nodeName, serviceProxyName                  string
	report                                      func(model.Problem)
	services, slices, nodes, serviceCIDRs, pods *objects
	redirects                                   *redirects
}

// Report reports an object or a file that cannot be used.
func (s *Store) Report(p model.Problem) { s.report(p) }

// NewStore returns an empty store, which marks changes of its objects, and reports unreadable objects.
func NewStore(cfg Config) *Store {
	mark := marker{
		nodeName: cfg.NodeName, tracker: cfg.Tracker, report: cfg.report(), besideProxy: cfg.ServiceProxyName != "",
		redirects: &redirects{to: map[types.NamespacedName][]redirect{}},
	}
	transform := cfg.transformer().transform
	return &Store{
		redirects: mark.redirects,
		nodeName:  cfg.NodeName, serviceProxyName: cfg.ServiceProxyName, report: cfg.report(),
		services: newObjects(transform, mark.service), slices: newObjects(transform, mark.slice),
		nodes: newObjects(transform, mark.node), serviceCIDRs: newObjects(transform, mark.serviceCIDR),
		pods: newObjects(transform, mark.pod),
	}
}

// Get returns a Service, its EndpointSlices of all address types, and those of its local redirect. The Service is nil
// if it does not exist, or if another proxy serves it. For the name of a pod, see [model.PodName], Get returns its host
// ports.
func (s *Store) Get(name types.NamespacedName) model.Objects {
	stored := s.services.get(name)
	service, exists := valueOf[corev1.Service](stored)
	if !exists {
		if name, isPod := model.PodOf(name); isPod {
			pod, _ := valueOf[corev1.Pod](s.pods.get(name))
			return model.ObjectsOfPod(pod)
		}
	}
	o := model.Objects{Service: service, Slices: s.slices.of(name)}
	if one, redirects := redirectOf(stored); redirects {
		if o.ExcessRedirect = !s.redirects.counts(one); !o.ExcessRedirect {
			o.Redirect = s.slices.of(one.to)
		}
	}
	return o
}

// valueOf returns the value of a stored object. It returns false if there is none.
func valueOf[T any](stored *object) (value *T, ok bool) {
	if stored != nil {
		value, ok = stored.value.(*T)
	}
	return value, ok
}

// Services returns the names of all Services and pods that [Store.Get] returns, in order.
func (s *Store) Services() []types.NamespacedName {
	var names []types.NamespacedName
	for _, stored := range s.services.list() {
		if stored.value != nil {
			names = append(names, stored.NamespacedName)
		}
	}
	for _, stored := range s.pods.list() {
		if stored.value != nil {
			names = append(names, model.PodName(stored.NamespacedName))
		}
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// Node returns this Node, or nil if it does not exist.
func (s *Store) Node() *corev1.Node {
	node, _ := valueOf[corev1.Node](s.nodes.get(types.NamespacedName{Name: s.nodeName}))
	return node
}

// Nodes returns all Nodes that the source has read: with an API server, only this Node.
func (s *Store) Nodes() []*corev1.Node { return values[corev1.Node](s.nodes) }

// ServiceCIDRs returns all ServiceCIDR objects, in order of their names. With a service-proxy name, it returns none,
// because unused addresses of a ServiceCIDR belong to the other proxy.
func (s *Store) ServiceCIDRs() []*networkingv1.ServiceCIDR {
	if s.serviceProxyName != "" {
		return nil
	}
	return values[networkingv1.ServiceCIDR](s.serviceCIDRs)
}

// values returns all objects of a kind, in order of their names.
func values[T any](from *objects) (list []*T) {
	stored := from.list()
	slices.SortFunc(stored, func(a, b *object) int { return model.CompareNames(a.NamespacedName, b.NamespacedName) })
	for _, o := range stored {
		if value, ok := valueOf[T](o); ok {
			list = append(list, value)
		}
	}
	return list
}

// Object is an API object in its stored form.
type Object = object

// Kind has the objects of one kind in a [Store], for a source that is not an API server.
type Kind struct {
	Name string
	// Encode returns the stored form of a decoded object of any kind, an [Object].
	Encode cache.TransformFunc
	// Publish replaces all objects of the kind, and marks the names of the objects that differ.
	Publish func(map[types.NamespacedName]*Object)
}

// Kinds returns the kinds of the objects in the store.
func (s *Store) Kinds() (services, slices, nodes, serviceCIDRs, pods Kind) {
	kind := func(name string, o *objects) Kind { return Kind{name, o.transform, o.replace} }
	return kind("Service", s.services), kind("EndpointSlice", s.slices), kind("Node", s.nodes),
		kind("ServiceCIDR", s.serviceCIDRs), kind("Pod", s.pods)
}

// marker turns changes of objects into marks. Its methods take the states before and after the change; nil means that
// the object does not exist. They mark nothing if the difference does not matter to the proxy.
type marker struct {
	nodeName string
	tracker  *track.Tracker
	report   func(model.Problem)
	// besideProxy is true if the source has only Services with a service-proxy name. The other proxy reports
	// EndpointSlices without a Service.
	besideProxy bool
	redirects   *redirects
}

// redirects has the local redirects by the Service that they name, those of the oldest Services first. Only the first
// [model.MostRedirects] count: the other Services keep their own endpoints, and no slice marks them. The watches of
// Services and of EndpointSlices use it.
type redirects struct {
	sync.RWMutex
	to map[types.NamespacedName][]redirect
}

// A redirect is the local redirect of a Service to another one.
type redirect struct {
	from, to types.NamespacedName
	age      model.Age
}

// redirectOf returns the local redirect of a stored Service, or false.
func redirectOf(o *object) (r redirect, ok bool) {
	if svc, exists := valueOf[corev1.Service](o); exists && svc.Annotations[model.RedirectAnnotation] != "" {
		to := types.NamespacedName{Namespace: o.Namespace, Name: svc.Annotations[model.RedirectAnnotation]}
		return redirect{o.NamespacedName, to, model.Objects{Service: svc}.Age()}, true
	}
	return r, false
}

func byAge(a, b redirect) int {
	return cmp.Or(a.age.Compare(b.age), model.CompareNames(a.from, b.from)) // files may have no age
}

// note records the local redirect of a Service, which may be nil. It returns the other Services whose redirect counts
// from now on, or no longer counts.
func (r *redirects) note(before, after *object) (others []types.NamespacedName) {
	old, had := redirectOf(before)
	now, has := redirectOf(after)
	if old == now {
		return nil
	}
	r.Lock()
	defer r.Unlock()
	const most = model.MostRedirects
	if had {
		at, _ := slices.BinarySearchFunc(r.to[old.to], old, byAge)
		list := slices.Delete(r.to[old.to], at, at+1)
		if r.to[old.to] = list; len(list) == 0 {
			delete(r.to, old.to)
		}
		if at < most && len(list) >= most {
			others = append(others, list[most-1].from)
		}
	}
	if has {
		at, _ := slices.BinarySearchFunc(r.to[now.to], now, byAge)
		list := slices.Insert(r.to[now.to], at, now)
		if r.to[now.to] = list; at < most && len(list) > most {
			others = append(others, list[most].from)
		}
	}
	return others
}

// counts reports whether the Service of a redirect is among the oldest ones that name the same Service.
func (r *redirects) counts(one redirect) bool {
	r.RLock()
	defer r.RUnlock()
	at, _ := slices.BinarySearchFunc(r.to[one.to], one, byAge)
	return at < model.MostRedirects
}

// service records a local redirect before it marks the Service. So the next build sees each slice that was changed
// before the record, and each later change of a slice marks the Service.
func (m marker) service(before, after *object) {
	if same(before, after) {
		return
	}
	others := m.redirects.note(before, after)
	m.tracker.MarkService(existing(before, after).NamespacedName)
	for _, name := range others {
		m.tracker.MarkSlice(name, track.Trigger{})
	}
}

// slice marks both Services if a slice moves from one Service to another. (kube-proxy keeps the endpoints in both
// Services.) It also marks the Services with a local redirect to them.
func (m marker) slice(before, after *object) {
	if same(before, after) {
		return
	}
	if after != nil && after.value != nil && after.service == "" && !m.besideProxy {
		m.report(model.Problem{
			Kind:   "EndpointSlice",
			Name:   after.NamespacedName,
			Field:  "metadata.labels[" + discoveryv1.LabelServiceName + "]",
			Reason: "is missing: set it to the name of the Service of these endpoints",
		})
	}
	mark := func(owner types.NamespacedName, trigger track.Trigger) {
		m.tracker.MarkSlice(owner, trigger)
		m.redirects.RLock()
		defer m.redirects.RUnlock()
		list := m.redirects.to[owner]
		for _, one := range list[:min(len(list), model.MostRedirects)] {
			m.tracker.MarkSlice(one.from, track.Trigger{})
		}
	}
	previous, hadOwner := before.ownerName()
	owner, owned := after.ownerName()
	if hadOwner && previous != owner {
		mark(previous, track.Trigger{})
	}
	if !owned {
		return
	}
	var trigger track.Trigger
	// An equal trigger is measured already.
	if at := after.triggerMicros; at != 0 && (before == nil || before.triggerMicros != at) {
		trigger = track.Trigger{At: time.UnixMicro(at).UTC(), IPv6: after.ipv6}
	}
	mark(owner, trigger)
}

func (m marker) node(before, after *object) {
	if same(before, after) || existing(before, after).Name != m.nodeName {
		return
	}
	m.tracker.MarkNode()
}

func (m marker) serviceCIDR(before, after *object) {
	if same(before, after) {
		return
	}
	m.tracker.MarkServiceCIDRs()
}

func (m marker) pod(before, after *object) {
	if same(before, after) {
		return
	}
	m.tracker.MarkService(model.PodName(existing(before, after).NamespacedName))
}

func existing(before, after *object) *object {
	if after != nil {
		return after
	}
	return before
}
