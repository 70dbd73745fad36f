package oracle

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The sentences of docs/compatibility.md about host ports.

// readPod adds the claims of a pod's host ports. "Two pods, or a pod and a Service with this node port: the older one
// has the port." So a Service stands for the pod, which is its only endpoint.
func (r *Oracle) readPod(pod *corev1.Pod) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if ended || pod.Spec.HostNetwork || pod.Spec.NodeName != r.machine.Name {
		return
	}
	stand := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: "pod/" + pod.Name, CreationTimestamp: pod.CreationTimestamp,
	}}
	mine := map[target]bool{}
	for _, p := range portsOf(pod) {
		for _, ip := range pod.Status.PodIPs {
			addr, ok := usable(ip.IP)
			at, served := r.hostPortAt(p.HostIP, addr)
			if !ok || !served || p.HostPort == 0 {
				continue
			}
			port := &corev1.ServicePort{Name: p.HostIP + " " + strconv.Itoa(int(p.HostPort)), Protocol: p.Protocol}
			c := claim{service: stand, port: port, ofPod: true, onNode: !at.IsValid()}
			r.claimTarget(mine, target{at, uint16(p.HostPort), protocol(p.Protocol), addr.Is6()}, c)
			of := key(stand, port, addr.Is6())
			if len(r.endpoints[of]) == 0 { // the first of two equal host ports has the port
				e := netip.AddrPortFrom(addr, uint16(p.ContainerPort))
				r.endpoints[of] = []endpoint{{addr: e, local: true, ready: true, weight: 1}}
			}
		}
	}
}

// losesToNodePort: "A host port with a hostIP and a node port with the same number compete at this address: the older
// object has it."
func (r *Oracle) losesToNodePort(c claim, t target) bool {
	t.addr = netip.Addr{}
	nodePort, taken := r.claims[t]
	return taken && c.ofPod && !c.onNode && nodePort.service != c.service && nodePort.older(c)
}

// portsOf returns the ports of the containers that run as long as the pod.
func portsOf(pod *corev1.Pod) (list []corev1.ContainerPort) {
	for _, c := range pod.Spec.Containers {
		list = append(list, c.Ports...)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = append(list, c.Ports...)
		}
	}
	return list
}

// hostPortAt returns the address at which a host port leads to an address of the pod, which is invalid for all
// addresses that serve node ports. hostIP is "the primary address of the Node in a family; 0.0.0.0 or :: for one
// family".
func (r *Oracle) hostPortAt(hostIP string, pod netip.Addr) (at netip.Addr, served bool) {
	if hostIP == "" {
		return at, true
	}
	at, err := netip.ParseAddr(hostIP)
	switch {
	case err != nil || at.Is4() != pod.Is4():
		return netip.Addr{}, false
	case at.IsUnspecified():
		return netip.Addr{}, true
	}
	return at, slices.Contains(r.primary, at)
}
