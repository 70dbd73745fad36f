package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Masquerade returns the source address of masqueraded packets to an address. For IPv6, it is the source of the route.
// For IPv4, the kernel selects an address of the interface by which the packet leaves, regardless of the source of the
// route.
func (r Routes) Masquerade(to netip.Addr) (netip.Addr, error) {
	route, err := routeTo(to)
	if err != nil || !to.Is4() {
		source, _ := netip.AddrFromSlice(route.Src)
		return source, err
	}
	list, err := addresses()
	next, ok := netip.AddrFromSlice(route.Gw.To4())
	if !ok {
		next = to
	}
	source, _ := selectSource(list, route.LinkIndex, next)
	return source, err
}

// addresses returns the IPv4 addresses of all interfaces.
func addresses() ([]netlink.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	return list, listed("addresses", err)
}

// selectSource returns the address that the kernel selects for masqueraded IPv4 packets (inet_select_addr of
// net/ipv4/devinet.c): of the interface's primary addresses that are valid on other machines, the first one in the
// network of the next hop, else the first one. An interface without such an address gets an address of another
// interface. own is then false.
func selectSource(list []netlink.Addr, device int, next netip.Addr) (source netip.Addr, own bool) {
	var first, other netip.Addr
	for i := range list {
		a := &list[i]
		addr, ok := netip.AddrFromSlice(a.IP.To4())
		switch {
		case !ok || a.Flags&unix.IFA_F_SECONDARY != 0 || a.Scope != unix.RT_SCOPE_UNIVERSE:
		case a.LinkIndex != device:
			if !other.IsValid() {
				other = addr
			}
		case a.Contains(next.AsSlice()):
			return addr, true
		case !first.IsValid():
			first = addr
		}
	}
	if first.IsValid() {
		return first, true
	}
	return other, false
}

// Disguise is a route whose masqueraded packets have another source address than this machine's own packets.
type Disguise struct {
	To     netip.Prefix
	Device string
	// Source is the source of masqueraded packets; invalid if this machine has no address for them. Wanted is the
	// source of the route, if it names one.
	Source, Wanted netip.Addr
}

// Disguises returns the IPv4 routes to networks whose masqueraded packets have a wrong source. Either the interface of
// the route has no address that is valid on other machines, or the route names another source. It ignores link-local
// and multicast networks, which have no endpoints, and routes to single addresses: these are usually pods of this
// machine, for which each address of the machine is right.
func Disguises() (list []Disguise, err error) {
	own, err := addresses()
	if err != nil {
		return nil, err
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err = listed("routes", err); err != nil {
		return nil, err
	}
	for i := range routes {
		r := &routes[i]
		to := prefixOf(inet.IPv4, r)
		if r.Type != unix.RTN_UNICAST || to.IsSingleIP() || to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast() {
			continue
		}
		hops := r.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
		}
		wanted, _ := netip.AddrFromSlice(r.Src.To4())
		for _, hop := range hops {
			if d, wrong := disguise(own, hop, to); wrong || wanted.IsValid() && wanted != d.Source {
				d.Wanted = wanted
				list = append(list, d)
			}
		}
	}
	return list, nil
}

// disguise describes the masqueraded packets to a network by a next hop. wrong is true if their source is of another
// interface.
func disguise(own []netlink.Addr, hop *netlink.NexthopInfo, to netip.Prefix) (d Disguise, wrong bool) {
	next, ok := netip.AddrFromSlice(hop.Gw.To4())
	if !ok {
		next = to.Addr()
	}
	source, known := selectSource(own, hop.LinkIndex, next)
	d = Disguise{To: to, Device: fmt.Sprint("interface ", hop.LinkIndex), Source: source}
	link, err := netlink.LinkByIndex(hop.LinkIndex)
	if err != nil {
		return d, false // it has just been deleted
	}
	d.Device = link.Attrs().Name
	return d, !known && link.Attrs().Flags&net.FlagLoopback == 0
}
