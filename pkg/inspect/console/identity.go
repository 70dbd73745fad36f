package console

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// identity reports that the program does not run on the Node with its name, that the address of the Node is unknown, or
// that the Node is being deleted.
func (c *Console) identity(s *view.Status, o *objects, used []inet.Family) view.Findings {
	if s.Loop == nil || s.Loop.Waits != "" || s.Loop.Last == nil || !s.API.Answers {
		return nil // the Node is unknown yet, or may have changed
	}
	own, err := host.Addresses()
	if err != nil {
		return nil
	}
	node, everywhere := c.Source.Node(), c.everywhere(used)
	switch {
	case node == nil && c.API == nil && len(c.Source.Nodes()) == 0:
		return c.unaddressed(everywhere, o.nodePorts, "the manifests have no Node "+c.NodeName)
	case node == nil:
		return view.Findings{c.nodeMissing(own, everywhere)}
	case !s.Eligible:
		return view.Findings{view.NewFinding(view.Warning, view.NodeBeingDeleted, c.node(),
			"the Node is being deleted: /healthz fails, so that load balancers send no new connections",
			"none for Services: connections continue, and the program serves all Services",
			"none, if the deletion is intended",
			"nothing")}
	case len(model.InternalIPs(node)) > 0 && len(nodesAt(own, node)) == 0:
		return view.Findings{c.nodeElsewhere(own, node)}
	}
	if missing := absent(model.InternalIPs(node), own, host.Families()); len(missing) > 0 {
		return view.Findings{c.addressMissing(missing)}
	}
	unknown := c.Loop.Facts().Node.IPs == ([2]netip.Addr{})
	why := fmt.Sprintf("Node %s has no InternalIP and no ExternalIP of %s", c.NodeName,
		strings.Join(view.Texts(c.fallbacks(used)), " and "))
	return append(c.outsideNetworks(), c.unaddressed(everywhere, unknown, why)...)
}

// fallbacks returns the IP families whose node ports are served on all addresses because the address of the Node is
// unknown.
func (c *Console) fallbacks(used []inet.Family) (list []inet.Family) {
	for _, f := range used {
		if slices.Contains(c.Families, f) && c.NodePortAddresses().Fallback(f, c.Loop.Facts().Node) {
			list = append(list, f)
		}
	}
	return list
}

// everywhere returns a sentence about node ports that are served on all addresses because the address of the Node is
// unknown, or "".
func (c *Console) everywhere(used []inet.Family) string {
	var list []string
	for _, f := range c.fallbacks(used) {
		list = append(list, view.Texts(c.Loop.Facts().NodeAddresses[f])...)
	}
	if len(list) == 0 {
		return ""
	}
	return "node ports are served on all addresses of this node: " + view.Names(list, 0)
}

// unaddressed reports that node ports are served on all addresses. It is a warning if isLikelyWrong is true, otherwise
// a note.
func (c *Console) unaddressed(everywhere string, isLikelyWrong bool, why string) view.Findings {
	if everywhere == "" {
		return nil
	}
	severity := view.Note
	if isLikelyWrong {
		severity = view.Warning
	}
	fix := "set --node-ip of the kubelet, or let the cloud controller manager set status.addresses of the Node. " +
		"Until then, set --bind-address of this program to the address of this node"
	if c.API == nil {
		fix = "add the Node with an InternalIP in status.addresses to the manifests, or set --bind-address of this " +
			"program to the address of this node"
	}
	return view.Findings{view.NewFinding(severity, view.NodeAddressUnknown, c.node(),
		why+", so "+everywhere,
		"clients reach node ports also at addresses that are not meant for them, for example in the pod network. All "+
			"other addresses of Services work as usual",
		fix,
		"the addresses of node ports on this node")}
}

// nodeMissing reports that there is no Node with the name of this program.
func (c *Console) nodeMissing(own []netip.Addr, everywhere string) view.Finding {
	f := view.NewFinding(view.Wrong, view.NodeMissing, c.node(),
		fmt.Sprintf("there is no Node %q", c.NodeName),
		"policy Local and topology hints do not work: the program finds no endpoint on this node. Health check node "+
			"ports report no local endpoints",
		"set --hostname-override to the name of this machine in the output of kubectl get nodes",
		"only the program on this node")
	if everywhere != "" {
		f.Impact += ". " + strings.ToUpper(everywhere[:1]) + everywhere[1:]
	}
	if c.API == nil {
		all := c.Source.Nodes()
		f.What += " in the manifests, only " + view.Names(namesOf(all), 0)
		f.Fix = "set --hostname-override to the name of this machine in the manifests" + theName(nodesAt(own, all...))
	}
	return f
}

// nodeElsewhere reports that this host has no address of the Node.
func (c *Console) nodeElsewhere(own []netip.Addr, node *corev1.Node) view.Finding {
	internal := view.Texts(model.InternalIPs(node))
	return view.NewFinding(view.Wrong, view.NodeAddressElsewhere, c.node(),
		fmt.Sprintf("no interface of this host has an address of Node %s (%s)", c.NodeName, strings.Join(internal, ", ")),
		"if the pod does not use the host network, no Service works on this node. If the name belongs to another Node, node ports and policy "+
			"Local do not work. If a gateway outside of the node translates the Node's addresses, none",
		"set hostNetwork: true in the pod's spec, or set --hostname-override to the name of this "+
			"Node"+theName(nodesAt(own, c.Source.Nodes()...)),
		"all pods with the same spec")
}

// absent returns the addresses that this host does not have, of the families that it has.
func absent(internal, own []netip.Addr, families []inet.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(internal), func(a netip.Addr) bool {
		return slices.Contains(own, a) || !slices.Contains(families, inet.FamilyOf(a))
	})
}

// addressMissing reports that this host has only some addresses of the Node.
func (c *Console) addressMissing(missing []netip.Addr) view.Finding {
	names := view.Names(view.Texts(missing), 0)
	return view.NewFinding(view.Warning, view.NodeAddressElsewhere, c.node(),
		fmt.Sprintf("no interface of this host has these addresses of Node %s: %s", c.NodeName, names),
		"node ports do not answer at these addresses, and other nodes do not reach this node by them",
		fmt.Sprintf("on node %s: add the address to an interface (IPv6 may be disabled there, or another "+
			"host has the address: ip -6 address), or correct status.addresses of the Node (--node-ip of the kubelet)", c.NodeName),
		"packets from and to these addresses")
}

// outsideNetworks reports addresses of this node whose node ports have no direct server return, unlike those of other
// nodes of the same family.
func (c *Console) outsideNetworks() view.Findings {
	if !c.DirectReturn {
		return nil
	}
	var outside []netip.Addr
	for f, networks := range c.PlanOptions(nil).NodeNetworks {
		addr := c.Loop.Facts().Node.IPs[f]
		contains := func(p netip.Prefix) bool { return p.Contains(addr) }
		if addr.IsValid() && len(networks) > 0 && !slices.ContainsFunc(networks, contains) {
			outside = append(outside, addr)
		}
	}
	if len(outside) == 0 {
		return nil
	}
	return view.Findings{view.NewFinding(view.Warning, view.NodeOutsideNetworks, c.node(),
		"--direct-server-return-node-cidrs does not contain "+view.Names(view.Texts(outside), 0),
		"node ports at this address use NAT, also those of Services with direct server return",
		"add the network of the address to the flag on all nodes",
		"node ports of Services with direct server return")}
}

// nodesAt returns the names of the Nodes with an internal address of this host.
func nodesAt(own []netip.Addr, list ...*corev1.Node) (names []string) {
	for _, n := range list {
		if slices.ContainsFunc(model.InternalIPs(n), func(addr netip.Addr) bool { return slices.Contains(own, addr) }) {
			names = append(names, n.Name)
		}
	}
	return names
}

func namesOf(list []*corev1.Node) (names []string) {
	for _, n := range list {
		names = append(names, "Node "+n.Name)
	}
	return names
}

// theName returns a name in brackets, if there is exactly one.
func theName(names []string) string {
	if len(names) != 1 {
		return ""
	}
	return " (" + names[0] + ")"
}
