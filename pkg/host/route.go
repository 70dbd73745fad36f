package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Routes looks up routes in this network namespace.
type Routes struct{}

// Type returns the route type of an address, such as RTN_LOCAL or RTN_UNICAST.
func (Routes) Type(addr netip.Addr) (uint32, error) {
	r, err := routeTo(addr)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EINVAL):
		return unix.RTN_UNREACHABLE, nil
	case err != nil:
		return 0, err
	}
	return uint32(r.Type), nil
}

// Out returns the interface for packets to an address, and the source address of this machine's own packets to it.
func (Routes) Out(to netip.Addr) (device string, source netip.Addr, err error) {
	r, err := routeTo(to)
	if err != nil {
		return "", netip.Addr{}, err
	}
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("find interface %d: %w", r.LinkIndex, err)
	}
	source, _ = netip.AddrFromSlice(r.Src)
	return link.Attrs().Name, source.Unmap(), nil
}

// Silent returns the next hop of packets to an address, and its interface, if the next hop does not answer ARP or NDP;
// otherwise an invalid address.
func (Routes) Silent(to netip.Addr) (hop netip.Addr, device string) {
	r, err := routeTo(to)
	if err != nil {
		return netip.Addr{}, ""
	}
	next := to
	if gateway, is := netip.AddrFromSlice(r.Gw); is {
		next = gateway.Unmap()
	}
	family := unix.AF_INET
	if next.Is6() {
		family = unix.AF_INET6
	}
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return netip.Addr{}, ""
	}
	neighbours, _ := netlink.NeighList(r.LinkIndex, family) // none after an error
	for _, n := range neighbours {
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip.Unmap() == next && n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) != 0 {
			return next, link.Attrs().Name
		}
	}
	return netip.Addr{}, ""
}

func routeTo(addr netip.Addr) (netlink.Route, error) {
	list, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return netlink.Route{}, fmt.Errorf("find route to %s: %w", addr, err)
	}
	if len(list) == 0 {
		return netlink.Route{}, fmt.Errorf("find route to %s: %w", addr, unix.ENETUNREACH)
	}
	return list[0], nil
}

// Arrives looks up the route of a packet that arrives by an interface, with all checks of the kernel, such as reverse
// path filtering and forwarding. It returns the kernel's error if the kernel would drop the packet.
func (Routes) Arrives(device string, from, to netip.Addr, mark uint32) error {
	o := &netlink.RouteGetOptions{Iif: device, SrcAddr: from.AsSlice(), Mark: mark}
	_, err := netlink.RouteGetWithOptions(to.AsSlice(), o)
	return err
}
