package host

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Bridge is a network bridge of this machine.
type Bridge struct {
	Name string
	// Prefixes are the subnets on the bridge. This machine does not see packets between their addresses.
	Prefixes []netip.Prefix
}

// Bridges returns the bridges with more than one port and an address in a subnet.
func Bridges() (list []Bridge, err error) {
	links, err := netlink.LinkList()
	if err = listed("interfaces", err); err != nil {
		return nil, err
	}
	ports := map[int]int{}
	for _, l := range links {
		ports[l.Attrs().MasterIndex]++
	}
	for _, l := range links {
		if l.Type() != "bridge" || ports[l.Attrs().Index] < 2 {
			continue
		}
		addrs, err := addressesOf(l)
		if err != nil {
			return nil, err
		}
		b := Bridge{Name: l.Attrs().Name}
		for _, p := range addrs {
			if !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() {
				b.Prefixes = append(b.Prefixes, p.Masked())
			}
		}
		if len(b.Prefixes) > 0 {
			list = append(list, b)
		}
	}
	return list, nil
}

// Bypassing returns the bridges whose packets between two ports bypass the rules of a family, and the sysctl that is
// not 1.
func Bypassing(f inet.Family) (list []Bridge, sysctl string, err error) {
	sysctl = [...]string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}[f]
	text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(sysctl, ".", "/"))
	if err == nil && strings.TrimSpace(string(text)) == "1" {
		return nil, sysctl, nil
	}
	list, err = Bridges() // without the file, the module br_netfilter is not loaded
	return list, sysctl, err
}

// Holds reports whether an address is in a subnet on the bridge.
func (b *Bridge) Holds(addr netip.Addr) bool {
	return slices.ContainsFunc(b.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
