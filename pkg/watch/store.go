package watch

import (
	"cmp"
	"fmt"
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
	report                                func(model.Problem)
	services, slices, nodes, serviceCIDRs *objects
}

// newStore returns a store of nothing, which marks and reports what is put into it.
func newStore(cfg Config) Store {
	mark := marker{nodeName: cfg.NodeName, tracker: cfg.Tracker, report: cfg.report()}
	transform := transformer{report: cfg.report()}.transform
	return Store{
		nodeName: cfg.NodeName, report: cfg.report(),
		services: newObjects(transform, mark.service), slices: newObjects(transform, mark.slice),
		nodes: newObjects(transform, mark.node), serviceCIDRs: newObjects(transform, mark.serviceCIDR),
	}
}

// Service returns a Service, or nil where there is none or another proxy has to handle it.
func (s *Store) Service(name types.NamespacedName) *corev1.Service {
	service := &corev1.Service{}
	if !s.ReadService(name, service) {
		return nil
	}
	return service
}

// ReadService makes an object what [Store.Service] would return, whatever it was before, in memory of its lists if they are long enough.
// It reports false where there is nothing to return.
func (s *Store) ReadService(name types.NamespacedName, into *corev1.Service) bool {
	stored := s.services.get(name)
	if stored == nil || stored.excluded {
		return false
	}
	*into = corev1.Service{Spec: corev1.ServiceSpec{Ports: into.Spec.Ports[:0], ClusterIPs: into.Spec.ClusterIPs[:0]}}
	return s.decoded("Service", stored, into)
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
	var list []*discoveryv1.EndpointSlice
	for _, stored := range s.Stored(service) {
		if slice := new(discoveryv1.EndpointSlice); stored.Read(slice) {
			slice.Labels = map[string]string{discoveryv1.LabelServiceName: service.Name}
			list = append(list, slice)
		}
	}
	return list
}

// Stored returns what [Store.Slices] does, to be decoded as far as it is needed.
func (s *Store) Stored(service types.NamespacedName) []model.Slice {
	found := s.slices.of(service)
	list := make([]model.Slice, len(found))
	for i, stored := range found {
		list[i] = storedSlice{s, stored}
	}
	return list
}

// storedSlice is an EndpointSlice in its stored form.
type storedSlice struct {
	store *Store
	*object
}

// Read implements [model.Slice]. There are no labels in it: whose slice it is, the caller knows.
func (s storedSlice) Read(into *discoveryv1.EndpointSlice) bool {
	endpoints := into.Endpoints[:0]
	if n := count(s.data, fieldEndpoints); n > cap(endpoints) {
		// Decoding appends to the list, which would be made anew five times while it grows to ten endpoints.
		endpoints = make([]discoveryv1.Endpoint, 0, n)
	}
	*into = discoveryv1.EndpointSlice{Endpoints: endpoints, Ports: into.Ports[:0]}
	return s.store.decoded("EndpointSlice", s.object, into)
}

// Node returns the proxy's own Node, or nil while there is none.
func (s *Store) Node() *corev1.Node {
	stored := s.nodes.get(types.NamespacedName{Name: s.nodeName})
	if stored == nil {
		return nil
	}
	node := &corev1.Node{}
	if !s.decoded("Node", stored, node) {
		return nil
	}
	return node
}

// ServiceCIDRs returns all ServiceCIDR objects, in order of their names.
func (s *Store) ServiceCIDRs() []*networkingv1.ServiceCIDR {
	var list []*networkingv1.ServiceCIDR
	for _, stored := range s.serviceCIDRs.list() {
		cidr := &networkingv1.ServiceCIDR{}
		if s.decoded("ServiceCIDR", stored, cidr) {
			list = append(list, cidr)
		}
	}
	slices.SortFunc(list, func(a, b *networkingv1.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// decoded reports false, and what is wrong, where an object is left out because it can't be read.
func (s *Store) decoded(kind string, stored *object, into message) bool {
	err := stored.decode(into)
	if err != nil {
		s.report(unreadable(kind, stored.NamespacedName, err))
	}
	return err == nil
}

func unreadable(kind string, name types.NamespacedName, err error) model.Problem {
	return model.Problem{Kind: kind, Name: name, Reason: fmt.Sprintf("the API server sent an object that cannot be read (%v); it is ignored", err)}
}
