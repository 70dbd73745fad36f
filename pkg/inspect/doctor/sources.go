package doctor

import (
	"fmt"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// disguises reports routes whose masqueraded packets have a wrong source address.
func (c *Config) disguises(list []host.Disguise) view.Findings {
	if len(list) == 0 {
		return nil
	}
	var routes []string
	for _, d := range list {
		text := fmt.Sprintf("%s by %s", d.To, d.Device)
		switch {
		case !d.Source.IsValid():
			text += " (no source)"
		case d.Wanted.IsValid():
			text += fmt.Sprintf(" (source %s, the route has %s)", d.Source, d.Wanted)
		default:
			text += fmt.Sprintf(" (source %s, of another interface)", d.Source)
		}
		routes = append(routes, text)
	}
	return view.Findings{view.NewFinding(view.Warning, view.MasqueradeSource, c.node(),
		"masqueraded IPv4 packets to these networks do not get the source address of the route: "+view.Names(routes, 0),
		"if endpoints or clients in these networks cannot send replies to this source, masqueraded connections to them time out. The kernel masquerades with an "+
			"address of the interface, and not of the route",
		c.on(fmt.Sprintf("ip address add ADDRESS/32 dev %s. ADDRESS is an address of this node that the network routes back to it, such as the InternalIP of "+
			"the Node. If another address of the interface precedes it, remove that address first", list[0].Device)),
		"packets of the node and masqueraded packets that leave by "+list[0].Device+", until the next boot")}
}

// localnet reports that each host on the node's networks can reach the ports at 127.0.0.1 of the node. guarded reports
// whether the rule of the kubelet or of kube-proxy against this exists.
func (c *Config) localnet(guarded bool) view.Findings {
	const name = "net/ipv4/conf/all/route_localnet"
	if n, ok := c.number(name); !ok || n == 0 || guarded {
		return nil
	}
	return view.Findings{view.NewFinding(view.Warning, view.LoopbackExposed, c.node(),
		fmt.Sprintf("this node routes packets of its networks to 127.0.0.0/8 (%s = 1), and the chain KUBE-FIREWALL, "+
			"which drops them, is missing", dotted(name)),
		"each host on a network of this node can reach ports that listen only on 127.0.0.1, unless another rule drops the packets. Services are not affected. "+
			"kube-proxy in mode iptables sets this sysctl, and kube-nftproxy does not need it",
		c.on("sysctl -w "+dotted(name)+"=0"),
		"rules that translate packets to 127.0.0.0/8, such as those of host ports on loopback, unless route_localnet "+
			"of their interface is 1")}
}
