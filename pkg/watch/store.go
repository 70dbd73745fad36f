package watch

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Store hands out what a source has read so far. All methods may be called from any goroutine. Each call decodes the
// object anew, so the caller owns what it gets. The objects hold only what the proxy reads: see transform.go.
type Store struct {
	nodeName                              string
	services, slices, nodes, serviceCIDRs *objects
}

// newStore returns a store of nothing, which marks and reports what is put into it.
func newStore(cfg Config) Store {
	mark := marker{nodeName: cfg.NodeName, tracker: cfg.Tracker, report: cfg.report()}
	transform := transformer{report: cfg.report()}.transform
	return Store{
		nodeName: cfg.NodeName,
		services: newObjects(transform, mark.service), slices: newObjects(transform, mark.slice),
		nodes: newObjects(transform, mark.node), serviceCIDRs: newObjects(transform, mark.serviceCIDR),
	}
}

// Service returns a Service, or nil where there is none or another proxy has to handle it.
func (s *Store) Service(name types.NamespacedName) *corev1.Service {
	stored := s.services.get(name)
	if stored == nil || stored.excluded {
		return nil
	}
	service := &corev1.Service{}
	stored.decode(service)
	return service
}

// Services returns the names of all Services that [Store.Service] has an object for, in order.
func (s *Store) Services() []types.NamespacedName {
	var names []types.NamespacedName
	for _, stored := range s.services.list() {
		if !stored.excluded {
			names = append(names, stored.NamespacedName)
		}
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// Slices returns the EndpointSlices that belong to a Service, of all address types, in order of their names.
func (s *Store) Slices(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	found := s.slices.of(service)
	list := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, stored := range found {
		// Decoding appends to the list, which would be made anew five times while it grows to ten endpoints.
		slice := &discoveryv1.EndpointSlice{Endpoints: make([]discoveryv1.Endpoint, 0, count(stored.data, fieldEndpoints))}
		stored.decode(slice)
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: service.Name}
		list = append(list, slice)
	}
	return list
}

// Node returns the proxy's own Node, or nil while there is none.
func (s *Store) Node() *corev1.Node {
	stored := s.nodes.get(types.NamespacedName{Name: s.nodeName})
	if stored == nil {
		return nil
	}
	node := &corev1.Node{}
	stored.decode(node)
	return node
}

// ServiceCIDRs returns all ServiceCIDR objects, in order of their names.
func (s *Store) ServiceCIDRs() []*networkingv1.ServiceCIDR {
	var list []*networkingv1.ServiceCIDR
	for _, stored := range s.serviceCIDRs.list() {
		cidr := &networkingv1.ServiceCIDR{}
		stored.decode(cidr)
		list = append(list, cidr)
	}
	slices.SortFunc(list, func(a, b *networkingv1.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
