package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// ipv4Conf is the folder of the IPv4 settings of interfaces.
const ipv4Conf = "net/ipv4/conf"

// Strict is the value of rp_filter with which the kernel drops a packet if the route back to its source leaves by
// another interface.
const Strict = 1

// ReversePath returns the value of rp_filter that applies to an interface: the greater one of the interface's own value
// and of the value for all interfaces. 0 is off, 1 is strict, 2 is loose.
func (c *Config) ReversePath(device string) int {
	all, _ := c.number(ipv4Conf + "/all/rp_filter")
	own, _ := c.number(ipv4Conf + "/" + device + "/rp_filter")
	return max(own, all)
}

// reversePath finds interfaces with strict reverse path filtering. It is a warning if the kernel has dropped packets,
// or if the routes show an interface whose packets it would drop. Otherwise it is a note, because the node does not
// know the senders behind an interface.
func (c *Config) reversePath(networks *host.Networks, dropped uint64) view.Findings {
	var strict []string
	for _, name := range c.interfaces() {
		if c.ReversePath(name) == Strict {
			strict = append(strict, name)
		}
	}
	if len(strict) == 0 {
		return nil
	}
	f := view.Finding{
		Severity: view.Note, Reason: view.ReversePathStrict, Object: c.node(), What: "strict reverse path filtering (rp_filter = 1) on " + view.Names(strict, 0),
		Impact: "on nodes with several networks, and in some pod networks, replies of endpoints, requests to node ports and packets with direct server " +
			"return are lost: the kernel drops a packet if the route back to its source uses another interface. On " +
			"other nodes, none",
	}
	device := strict[0]
	if asymmetric := otherWays(networks.Routes, strict); len(asymmetric) > 0 {
		device = asymmetric[0].device
		f.Severity, f.What = view.Warning, f.What+": "+asymmetric[0].text()
		f.Impact = fmt.Sprintf("the kernel drops packets from %s that arrive by %s, such as requests to node ports "+
			"and replies of endpoints", asymmetric[0].prefix, device)
	}
	if dropped > 0 {
		f.What += fmt.Sprintf("; the kernel has dropped %s by reverse path filtering since the boot "+
			"(IPReversePathFilter)", view.Count(int(dropped), "packet"))
		if f.Severity == view.Note {
			f.Impact = "requests to node ports and replies of endpoints may be among these packets: the kernel drops a packet if the route back to its source uses " +
				"another interface. kube-nftproxy trace FROM ADDRESS:PORT --live shows whether a connection is affected"
		}
		f.Severity = view.Warning
	}
	f.Fix = c.on(LooseCommand(device))
	f.Affects = device + " accepts packets from each source address to which this node has any route, until the next " +
		"boot"
	return view.Findings{f}
}

// LooseCommand returns the command that makes the reverse path filtering of an interface loose.
func LooseCommand(device string) string {
	return "sysctl -w net.ipv4.conf." + strings.ReplaceAll(device, ".", "/") + ".rp_filter=2"
}

// otherWay is a network with a route by an interface, if the kernel uses another route to the network.
type otherWay struct {
	device string
	prefix netip.Prefix
	used   []string
}

func (o otherWay) text() string {
	to := o.prefix.String()
	if o.prefix.Bits() == 0 {
		to = "other networks (the default route)"
	}
	return fmt.Sprintf("%s has a route to %s, but packets to there leave by %s", o.device, to, strings.Join(o.used, " and "))
}

// otherWays returns the routes by the given interfaces that the kernel does not use, because another route of the table
// main has the same prefix and a smaller metric. It ignores routes of other tables: their rules decide whether they
// apply to the route back to a source.
func otherWays(routes []host.Route, devices []string) (list []otherWay) {
	best := map[netip.Prefix]*host.Route{}
	for i := range routes {
		r := &routes[i]
		if b := best[r.Prefix]; r.Main && (b == nil || r.Metric < b.Metric) {
			best[r.Prefix] = r
		}
	}
	for i := range routes {
		r := &routes[i]
		if !r.Main || inet.FamilyOf(r.Prefix.Addr()) != inet.IPv4 || r.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		for _, d := range r.Devices {
			if used := best[r.Prefix].Devices; slices.Contains(devices, d) && !slices.Contains(used, d) {
				list = append(list, otherWay{d, r.Prefix, used})
			}
		}
	}
	return list
}
