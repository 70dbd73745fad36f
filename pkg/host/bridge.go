package host

import (
	"net/netip"

	"github.com/vishvananda/netlink"
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
