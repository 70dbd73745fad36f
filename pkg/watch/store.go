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

// Store holds the objects that a source has read. All methods may be called from any goroutine. Service, Slices, Node and
// ServiceCIDRs decode new objects, which the caller owns. ReadService overwrites an object, and StoredSlices decodes on demand. The objects have only
// the fields that the proxy reads (see wire.go).
type Store struct {
	nodeName, serviceProxyName            string
	report                                func(model.Problem)
	services, slices, nodes, serviceCIDRs *objects
}

// Report reports an object or a file that cannot be used.
func (s *Store) Report(p model.Problem) { s.report(p) }

// NewStore returns an empty store, which marks changes of its objects, and reports unreadable objects.
func NewStore(cfg Config) *Store {
	mark := marker{nodeName: cfg.NodeName, tracker: cfg.Tracker, report: cfg.report(), besideProxy: cfg.ServiceProxyName != ""}
	transform := cfg.transformer().transform
	return &Store{
		nodeName: cfg.NodeName, serviceProxyName: cfg.ServiceProxyName, report: cfg.report(),
		services: newObjects(transform, mark.service), slices: newObjects(transform, mark.slice),
		nodes: newObjects(transform, mark.node), serviceCIDRs: newObjects(transform, mark.serviceCIDR),
	}
}

// Service returns a Service, or nil if it does not exist or is assigned to another proxy.
func (s *Store) Service(name types.NamespacedName) *corev1.Service {
	service := &corev1.Service{}
	if !s.ReadService(name, service) {
		return nil
	}
	return service
}

// ReadService decodes the same Service as [Store.Service] into an object. It overwrites the object's previous content and reuses
// the memory of its lists. It returns false if there is no such Service.
func (s *Store) ReadService(name types.NamespacedName, into *corev1.Service) bool {
	stored := s.services.get(name)
	if stored == nil || stored.excluded {
		return false
	}
	return s.decode("Service", stored, into)
}

// Age returns the age of a Service, without decoding the Service; the zero Age if there is no such Service.
func (s *Store) Age(name types.NamespacedName) (age model.Age) {
	stored := s.services.get(name)
	if stored == nil {
		return age
	}
	const metadata, uid, creationTimestamp, seconds = 1, 5, 8, 1
	meta := find(stored.data, metadata)
	age.UID = find(meta, uid)
	for f := (fieldReader[string]{rest: find(meta, creationTimestamp)}); f.next(); {
		if f.number == seconds {
			age.Created = int64(f.value)
		}
	}
	return age
}

// Services returns the names of all Services that [Store.Service] returns, in order.
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

// Slices returns the EndpointSlices of a Service, of all address types, in order of their names.
func (s *Store) Slices(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	var list []*discoveryv1.EndpointSlice
	for _, stored := range s.StoredSlices(service) {
		if slice := new(discoveryv1.EndpointSlice); stored.Read(slice) {
			slice.Labels = map[string]string{discoveryv1.LabelServiceName: service.Name}
			list = append(list, slice)
		}
	}
	return list
}

// StoredSlices returns the same slices as [Store.Slices], for decoding on demand.
func (s *Store) StoredSlices(service types.NamespacedName) []model.Slice {
	found := s.slices.of(service)
	list := make([]model.Slice, len(found))
	for i, stored := range found {
		list[i] = storedSlice{s, stored}
	}
	return list
}

// Size returns the number of bytes of a Service and its slices in their stored form.
func (s *Store) Size(service types.NamespacedName) (n int) {
	if stored := s.services.get(service); stored != nil {
		n = len(stored.data)
	}
	for _, stored := range s.slices.of(service) {
		n += len(stored.data)
	}
	return n
}

// storedSlice is an EndpointSlice in its stored form.
type storedSlice struct {
	store *Store
	*object
}

// Read implements [model.Slice]. The stored form has no labels; the caller knows the Service.
func (s storedSlice) Read(into *discoveryv1.EndpointSlice) bool {
	return s.store.decode("EndpointSlice", s.object, into)
}

// Node returns this Node, or nil if it does not exist.
func (s *Store) Node() *corev1.Node {
	stored := s.nodes.get(types.NamespacedName{Name: s.nodeName})
	if stored == nil {
		return nil
	}
	node := &corev1.Node{}
	if !s.decode("Node", stored, node) {
		return nil
	}
	return node
}

// Nodes returns all Nodes that the source has read: with an API server, only this Node.
func (s *Store) Nodes() []*corev1.Node {
	return decodeAll[corev1.Node](s, "Node", s.nodes)
}

// ServiceCIDRs returns all ServiceCIDR objects, in order of their names. With a service-proxy name, it returns none, because unused addresses
// of a ServiceCIDR belong to the other proxy.
func (s *Store) ServiceCIDRs() []*networkingv1.ServiceCIDR {
	if s.serviceProxyName != "" {
		return nil
	}
	return decodeAll[networkingv1.ServiceCIDR](s, "ServiceCIDR", s.serviceCIDRs)
}

// decodeAll decodes all stored objects of a kind, and returns them in order of their names.
func decodeAll[T any, P interface {
	*T
	message
}](s *Store, kind string, from *objects) (list []P) {
	for _, stored := range from.list() {
		if into := P(new(T)); s.decode(kind, stored, into) {
			list = append(list, into)
		}
	}
	slices.SortFunc(list, func(a, b P) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return list
}

// decode decodes a stored object. If this fails, it reports a problem and returns false.
func (s *Store) decode(kind string, stored *object, into message) bool {
	err := stored.decode(into)
	if err != nil {
		s.report(unreadable(kind, stored.NamespacedName, err))
	}
	return err == nil
}

func unreadable(kind string, name types.NamespacedName, err error) model.Problem {
	return model.Problem{Kind: kind, Name: name, Reason: fmt.Sprintf("the API server sent an object that cannot be read (%v); it is ignored", err)}
}
