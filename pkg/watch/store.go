package watch

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// byService is the index that finds the EndpointSlices of a Service.
const byService = "service"

// Store hands out what a source has read so far. All methods may be called from any goroutine. Each call decodes the
// object anew, so the caller owns what it gets. The objects hold only what the proxy reads: see transform.go.
type Store struct {
	nodeName                              string
	services, slices, nodes, serviceCIDRs cache.Indexer
}

// Service returns a Service, or nil where there is none or another proxy has to handle it.
func (s *Store) Service(name types.NamespacedName) *corev1.Service {
	stored := lookup(s.services, name.String())
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
	for _, item := range s.services.List() {
		if stored := item.(*object); !stored.excluded {
			names = append(names, stored.NamespacedName)
		}
	}
	slices.SortFunc(names, compareNames)
	return names
}

// Slices returns the EndpointSlices that belong to a Service, of all address types, in order of their names.
func (s *Store) Slices(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	items, err := s.slices.ByIndex(byService, service.String())
	if err != nil {
		panic(err) // the index is one of ours
	}
	slices.SortFunc(items, func(a, b any) int { return compareNames(a.(*object).NamespacedName, b.(*object).NamespacedName) })
	list := make([]*discoveryv1.EndpointSlice, 0, len(items))
	for _, item := range items {
		slice := &discoveryv1.EndpointSlice{}
		item.(*object).decode(slice)
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: service.Name}
		list = append(list, slice)
	}
	return list
}

// Node returns the proxy's own Node, or nil while there is none.
func (s *Store) Node() *corev1.Node {
	stored := lookup(s.nodes, s.nodeName)
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
	for _, item := range s.serviceCIDRs.List() {
		cidr := &networkingv1.ServiceCIDR{}
		item.(*object).decode(cidr)
		list = append(list, cidr)
	}
	slices.SortFunc(list, func(a, b *networkingv1.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func lookup(indexer cache.Indexer, key string) *object {
	item, exists, err := indexer.GetByKey(key)
	if err != nil || !exists { // a lookup in memory has no errors
		return nil
	}
	return item.(*object)
}

func sliceIndexers() cache.Indexers {
	return cache.Indexers{byService: func(item any) ([]string, error) {
		name, ok := item.(*object).ownerName()
		if !ok {
			return nil, nil
		}
		return []string{name.String()}, nil
	}}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
