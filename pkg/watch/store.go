package watch

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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
	Name    string
	objects *objects
}

// Kinds returns the kinds of the objects in the store.
func (s *Store) Kinds() (services, slices, nodes, serviceCIDRs, pods Kind) {
	return Kind{"Service", s.services}, Kind{"EndpointSlice", s.slices},
		Kind{"Node", s.nodes}, Kind{"ServiceCIDR", s.serviceCIDRs}, Kind{"Pod", s.pods}
}

// Encode returns the stored form of a decoded object of any kind.
func (k Kind) Encode(item any) (*Object, error) {
	encoded, err := k.objects.transform(item)
	if err != nil {
		return nil, err
	}
	return encoded.(*Object), nil
}

// Publish replaces all objects of the kind, and marks the names of the objects that differ.
func (k Kind) Publish(wanted map[types.NamespacedName]*Object) {
	k.objects.replace(slices.Collect(maps.Values(wanted)))
}
