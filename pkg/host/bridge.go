package host

import (
	"errors"
	"fmt"
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
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	ports := map[int]int{}
	for _, l := range links {
		ports[l.Attrs().MasterIndex]++
	}
	for _, l := range links {
		if l.Type() != "bridge" || ports[l.Attrs().Index] < 2 {
			continue
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		b := Bridge{Name: l.Attrs().Name}
		for _, a := range addrs {
			addr, ok := netip.AddrFromSlice(a.IP)
			ones, bits := a.Mask.Size()
			if addr = addr.Unmap(); ok && ones < bits && !addr.IsLinkLocalUnicast() && bits == addr.BitLen() {
				b.Prefixes = append(b.Prefixes, netip.PrefixFrom(addr, ones).Masked())
			}
		}
		if len(b.Prefixes) > 0 {
			list = append(list, b)
		}
	}
	return list, nil
}
