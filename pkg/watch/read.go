package watch

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DecodeService decodes the stored fields of a Service, see keptOfService. It overwrites an object, and reuses the memory of its lists. The strings
// share the memory of data, except names of ports, which outlive the object in the plan. The generated decoder would allocate each string.
func DecodeService(data string, into *corev1.Service) error {
	clear(into.Spec.Ports) // beyond the new length, the strings would keep earlier objects alive
	unused := into.Spec
	*into = corev1.Service{Spec: corev1.ServiceSpec{Ports: unused.Ports[:0], ClusterIPs: unused.ClusterIPs[:0], IPFamilies: unused.IPFamilies[:0]}}
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			f.fail(readMetadata(f.text(), &into.ObjectMeta))
		case 2:
			f.fail(readServiceSpec(f.text(), &into.Spec, &unused))
		case 3:
			f.fail(into.Status.Unmarshal([]byte(f.text())))
		}
	}
	return f.err
}

func readMetadata(data string, into *metav1.ObjectMeta) error {
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 5:
			into.UID = types.UID(f.text())
		case 8:
			f.fail(into.CreationTimestamp.Unmarshal([]byte(f.text())))
		case fieldAnnotations:
			if into.Annotations == nil {
				into.Annotations = map[string]string{}
			}
			into.Annotations[f.within(keyField)] = f.within(valueField)
		}
	}
	return f.err
}

// readServiceSpec decodes a spec. It uses the memory of an unused spec.
func readServiceSpec(data string, into, unused *corev1.ServiceSpec) error {
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			f.fail(readServicePort(f.text(), extend(&into.Ports)))
		case 3:
			into.ClusterIP = f.text()
		case 4:
			into.Type = corev1.ServiceType(f.text())
		case 5:
			into.ExternalIPs = append(into.ExternalIPs, f.text())
		case 7:
			into.SessionAffinity = corev1.ServiceAffinity(f.text())
		case 9:
			into.LoadBalancerSourceRanges = append(into.LoadBalancerSourceRanges, f.text())
		case 11:
			into.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(f.text())
		case 12:
			into.HealthCheckNodePort = int32(f.integer())
		case 14:
			if into.SessionAffinityConfig == nil {
				into.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
			}
			f.fail(into.SessionAffinityConfig.Unmarshal([]byte(f.text())))
		case 18:
			into.ClusterIPs = append(into.ClusterIPs, f.text())
		case 19:
			into.IPFamilies = append(into.IPFamilies, corev1.IPFamily(f.text()))
		case 21:
			into.LoadBalancerClass = new(f.text())
		case 22:
			into.InternalTrafficPolicy = pointer(unused.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicy(f.text()))
		}
	}
	return f.err
}

func readServicePort(data string, into *corev1.ServicePort) error {
	*into = corev1.ServicePort{}
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			into.Name = unique.Make(f.text()).Value()
		case 2:
			into.Protocol = corev1.Protocol(f.text())
		case 3:
			into.Port = int32(f.integer())
		case 5:
			into.NodePort = int32(f.integer())
		}
	}
	return f.err
}

// DecodeSlice decodes the stored fields of an EndpointSlice, see keptOfSlice. It overwrites an object, and reuses the memory of its lists and of
// their items. All strings share the memory of data.
func DecodeSlice(data string, into *discoveryv1.EndpointSlice) error {
	forget(into)
	endpoints := into.Endpoints[:0]
	if n := count(data, fieldEndpoints); n > cap(endpoints) {
		endpoints = make([]discoveryv1.Endpoint, 0, n)
	}
	*into = discoveryv1.EndpointSlice{Endpoints: endpoints, Ports: into.Ports[:0]}
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case fieldMetadata:
			f.fail(readMetadata(f.text(), &into.ObjectMeta))
		case fieldEndpoints:
			f.fail(readEndpoint(f.text(), extend(&into.Endpoints)))
		case fieldPorts:
			f.fail(readEndpointPort(f.text(), extend(&into.Ports)))
		case 4:
			into.AddressType = discoveryv1.AddressType(f.text())
		}
	}
	return f.err
}

// forget drops the strings of a slice, and keeps the memory of its lists and items. Otherwise, the strings beyond the length of a shorter list would keep
// earlier slices alive.
func forget(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		clear(e.Addresses)
		drop(e.NodeName)
		drop(e.Zone)
		e.TargetRef, e.Hints = nil, nil
	}
	for i := range s.Ports {
		drop(s.Ports[i].Name)
		drop(s.Ports[i].Protocol)
	}
}

func drop[T ~string](p *T) {
	if p != nil {
		*p = ""
	}
}

func readEndpoint(data string, into *discoveryv1.Endpoint) error {
	unused := *into
	*into = discoveryv1.Endpoint{Addresses: unused.Addresses[:0]}
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			into.Addresses = append(into.Addresses, f.text())
		case 2:
			f.fail(readConditions(f.text(), &into.Conditions, &unused.Conditions))
		case 4:
			into.TargetRef = &corev1.ObjectReference{}
			f.fail(into.TargetRef.Unmarshal([]byte(f.text())))
		case 6:
			into.NodeName = pointer(unused.NodeName, f.text())
		case 7:
			into.Zone = pointer(unused.Zone, f.text())
		case 8:
			if into.Hints == nil {
				into.Hints = &discoveryv1.EndpointHints{}
			}
			f.fail(readHints(f.text(), into.Hints))
		}
	}
	return f.err
}

// readConditions decodes conditions. It uses the memory of unused conditions.
func readConditions(data string, into, unused *discoveryv1.EndpointConditions) error {
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			into.Ready = pointer(unused.Ready, f.integer() != 0)
		case 2:
			into.Serving = pointer(unused.Serving, f.integer() != 0)
		case 3:
			into.Terminating = pointer(unused.Terminating, f.integer() != 0)
		}
	}
	return f.err
}

func readHints(data string, into *discoveryv1.EndpointHints) error {
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			into.ForZones = append(into.ForZones, discoveryv1.ForZone{Name: f.within(1)})
		case 2:
			into.ForNodes = append(into.ForNodes, discoveryv1.ForNode{Name: f.within(1)})
		}
	}
	return f.err
}

func readEndpointPort(data string, into *discoveryv1.EndpointPort) error {
	unused := *into
	*into = discoveryv1.EndpointPort{}
	f := fieldReader[string]{rest: data}
	for f.next() {
		switch f.number {
		case 1:
			into.Name = pointer(unused.Name, f.text())
		case 2:
			into.Protocol = pointer(unused.Protocol, corev1.Protocol(f.text()))
		case 3:
			into.Port = pointer(unused.Port, int32(f.integer()))
		}
	}
	return f.err
}

// pointer returns a pointer to a value, in the memory of an unused pointer unless that is nil.
func pointer[T any](unused *T, value T) *T {
	if unused == nil {
		unused = new(T)
	}
	*unused = value
	return unused
}

// extend makes a list one item longer, and returns the item. The item may have the content of an earlier object.
func extend[T any](list *[]T) *T {
	if n := len(*list); n < cap(*list) {
		*list = (*list)[:n+1]
	} else {
		var item T
		*list = append(*list, item)
	}
	return &(*list)[len(*list)-1]
}
