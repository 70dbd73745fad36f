package console

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// target is an address and a port to search for. A zero port stands for any port. Without an address, the port is a
// node port.
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
