package model

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// podPrefix begins the name under which a pod with host ports is planned. No Service has such a name, because the API
// server permits no slash in names.
const podPrefix = "pod/"

// PodName returns the name under which the host ports of a pod are planned, like a Service.
func PodName(pod types.NamespacedName) types.NamespacedName {
	pod.Name = podPrefix + pod.Name
	return pod
}

// PodOf returns the pod whose host ports are planned under a name. It returns false for the name of a Service.
func PodOf(name types.NamespacedName) (pod types.NamespacedName, is bool) {
	name.Name, is = strings.CutPrefix(name.Name, podPrefix)
	return name, is
}

// ObjectOf returns the kind and the name of the object that is planned under a name.
func ObjectOf(name types.NamespacedName) (kind string, object types.NamespacedName) {
	if pod, is := PodOf(name); is {
		return "Pod", pod
	}
	return "Service", name
}

// NodePortProblem returns a problem with the ports of the node that the object that is planned under a name has.
func NodePortProblem(name types.NamespacedName) Problem {
	kind, object := ObjectOf(name)
	field := "spec.ports[].nodePort"
	if kind == "Pod" {
		field = "spec.containers[].ports[].hostPort"
	}
	return Problem{Kind: kind, Name: object, Field: field}
}

// MostHostPorts is the limit of host ports of a pod. The first ones are kept.
const MostHostPorts = 500

// HostPorts returns the ports of a pod that this node has to serve, at most one more than the limit. A pod in the
// network of the node serves its ports itself, and a pod that has ended serves none.
func HostPorts(pod *corev1.Pod) (ports []corev1.ContainerPort) {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 && len(ports) <= MostHostPorts {
				ports = append(ports, p)
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers { // those that run as long as the pod
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return ports
}

// ObjectsOfPod returns the host ports of a pod, which may be nil, as a Service whose only endpoint is the pod. The
// addresses of the pod are also the cluster IPs, so that these name the families; they are no frontends.
func ObjectsOfPod(pod *corev1.Pod) Objects {
	if pod == nil {
		return Objects{}
	}
	svc := &corev1.Service{ObjectMeta: *pod.ObjectMeta.DeepCopy()}
	svc.Name = podPrefix + pod.Name
	var ports []discoveryv1.EndpointPort
	used := map[portKey]bool{}
	for _, p := range HostPorts(pod) {
		of := discoveryv1.EndpointPort{Name: new(hostPortName(&p)), Protocol: &p.Protocol, Port: &p.ContainerPort}
		protocol, _, reason := checkPort(&of)
		key := portKey{name: *of.Name, protocol: protocol}
		if reason == "" && !used[key] { // a host port that is used twice leads to the first container port
			used[key] = true
			ports = append(ports, of)
		}
	}
	o := Objects{Service: svc, Pod: pod}
	for _, ip := range pod.Status.PodIPs {
		addr, reason := parseDestination(ip.IP)
		if reason != "" {
			continue
		}
		family := inet.FamilyOf(addr).String()
		svc.Spec.ClusterIP = addr.String()
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, addr.String())
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPFamily(family))
		o.Slices = append(o.Slices, NewSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: pod.Namespace, Name: svc.Name},
			AddressType: discoveryv1.AddressType(family), Ports: ports,
			Endpoints: []discoveryv1.Endpoint{{Addresses: svc.Spec.ClusterIPs[len(svc.Spec.ClusterIPs)-1:],
				NodeName: &pod.Spec.NodeName}},
		}, Limits{}, Stored{}))
	}
	return o
}

// hostPortName returns the name of the service port of a host port, which is unique for each protocol.
func hostPortName(p *corev1.ContainerPort) string {
	port := strconv.Itoa(int(p.HostPort))
	if p.HostIP == "" {
		return port
	}
	return net.JoinHostPort(p.HostIP, port)
}

// setHostPorts sets the service ports of the host ports, without endpoints.
func (b *builder) setHostPorts() {
	const field = "spec.containers[].ports"
	n := len(b.hostPorts)
	if n > MostHostPorts {
		b.reportExcess(limitHostPorts, field, 0, MostHostPorts, "further ones are not served", "divide the pod")
	}
	used := map[portKey]bool{}
	for i := range b.hostPorts[:min(n, MostHostPorts)] {
		p := &b.hostPorts[i]
		protocol, known := protocolOf(p.Protocol)
		number, valid := portNumber(p.HostPort)
		at, served, reason := b.hostIP(p.HostIP)
		key := portKey{name: hostPortName(p), protocol: protocol}
		switch {
		case !known:
			b.invalid(field, string(p.Protocol), "not TCP, UDP or SCTP")
			continue
		case !valid || used[key]:
			b.problem(field, fmt.Sprintf("hostPort %d is not a port, or used twice for %s", p.HostPort, protocol))
			continue
		case reason != "":
			b.invalid(field, p.HostIP, reason)
			continue
		}
		used[key] = true
		for _, f := range inet.Families {
			if served[f] && b.cluster[f].IsValid() {
				b.out.Ports = append(b.out.Ports, &ServicePort{
					Name: PortName{b.out.Name, key.name}, Protocol: protocol, Family: f,
					Frontends: []Frontend{
						{Key: Key{Addr: at, Port: number, Protocol: protocol, Family: f}, Kind: HostPort},
					},
				})
			}
		}
	}
	slices.SortStableFunc(b.out.Ports, func(a, b *ServicePort) int { return int(a.Family) - int(b.Family) })
}

// hostIP returns the address at which a host port is served: the zero Addr for all addresses that serve node ports. It
// also returns whether it is served in each family, and the reason why not.
func (b *builder) hostIP(text string) (at netip.Addr, served [2]bool, reason string) {
	if text == "" {
		return at, [2]bool{true, true}, ""
	}
	at, err := parseRaw(text)
	if err != nil {
		return at, served, err.Error()
	}
	at = at.Unmap()
	f := inet.FamilyOf(at)
	served[f] = true
	switch {
	case at.IsUnspecified():
		at = netip.Addr{}
	case at != b.node.IPs[f]:
		reason = "the hostIP is not the primary " + f.String() + " address of this node"
	}
	return at, served, reason
}
