package console

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// target is an address and a port to search for. A zero port stands for any port. Without an address, the port is a node port.
type target struct {
	Addr netip.Addr
	Port uint16
	// NodePorts is true if node ports are served on the address.
	NodePorts bool
}

// mentions reports whether a frontend or an endpoint of a Service has the target, used or not.
func mentions(o model.Objects, node model.Node, opts model.Options, t target) bool {
	built := model.Build(o, node, opts)
	if built == nil {
		return false
	}
	for _, sp := range built.Ports {
		for i := range sp.Frontends {
			f := &sp.Frontends[i]
			nodePort := !f.Addr.IsValid() && t.Port != 0 && (t.NodePorts || !t.Addr.IsValid())
			if (t.Port == 0 || f.Has(t.Port)) && (nodePort || t.Addr.IsValid() && f.Addr == t.Addr) {
				return true
			}
		}
	}
	return t.Addr.IsValid() && slices.ContainsFunc(slices.Concat(o.Slices, o.Redirect), func(s *model.Slice) bool {
		return s.HasPort(t.Port) && slices.Contains(model.Addresses([]*model.Slice{s}, ""), t.Addr)
	})
}

// claims reports whether a Service of another proxy has the target: as a cluster IP, an external IP, a load-balancer IP, or a node port. The API server
// has validated the Service.
func claims(svc *corev1.Service, t target) bool {
	has := func(p corev1.ServicePort) bool {
		if !t.Addr.IsValid() {
			return p.NodePort == int32(t.Port)
		}
		return t.Port == 0 || p.Port == int32(t.Port)
	}
	if !slices.ContainsFunc(svc.Spec.Ports, has) {
		return false
	}
	if !t.Addr.IsValid() {
		return true
	}
	list := slices.Concat(svc.Spec.ClusterIPs, svc.Spec.ExternalIPs)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		list = append(list, in.IP)
	}
	return slices.ContainsFunc(list, func(text string) bool {
		addr, err := netip.ParseAddr(text)
		return err == nil && addr.Unmap() == t.Addr
	})
}
