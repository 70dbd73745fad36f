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
