package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netlinkRoute is the netlink family of links, addresses and routes.
const netlinkRoute = unix.NETLINK_ROUTE

// setting is a value of /proc/sys/net.
type setting struct{ key, value string }

// everywhere is set in each namespace before it has devices. Without duplicate address detection and autoconfiguration, an IPv6
// address works at once and is the only one. Without rate limits, each rejected packet gets an answer. The rate mask of ICMPv6
// cannot be empty, so it names an unused type. Redirects, which a packet that leaves by the bridge it arrived on would cause,
// would lead hosts past the node.
var everywhere = []setting{
	{"ipv4/conf/all/rp_filter", "0"},
	{"ipv4/conf/default/rp_filter", "0"},
	{"ipv4/conf/all/send_redirects", "0"},
	{"ipv4/conf/default/send_redirects", "0"},
	{"ipv4/conf/default/accept_redirects", "0"},
	{"ipv4/icmp_ratemask", "0"},
	{"ipv4/ping_group_range", "0 0"},
	{"ipv6/icmp/ratelimit", "0"},
	{"ipv6/icmp/ratemask", "200"},
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/dad_transmits", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/default/accept_redirects", "0"},
	{"ipv6/conf/default/autoconf", "0"},
	{"ipv6/conf/default/addr_gen_mode", "1"},
}

// forwarding makes the node a router.
var forwarding = []setting{
	{"ipv4/ip_forward", "1"},
	{"ipv6/conf/all/forwarding", "1"},
}

// gateway4 and gateway6 are the hosts' addresses for the node. No device has them; permanent neighbour entries lead to the node.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// prepare sets the host's sysctls and starts its loopback device.
func (h *Host) prepare() error {
	settings := everywhere
	if h == h.lab.Node {
		settings = append(settings[:len(settings):len(settings)], forwarding...)
	}
	return h.Do(func() error {
		for _, s := range settings {
			if err := writeSysctl(s); err != nil {
				return fmt.Errorf("prepare %s: %w", h.Name, err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback of %s: %w", h.Name, err)
		}
		return netlink.LinkSetUp(lo)
	})
}

// side is one end of a veth pair.
type side struct {
	*netlink.Handle
	link netlink.Link
	mac  net.HardwareAddr
}

// bridge adds a bridge to the node. It returns nil for an empty name.
func (l *Lab) bridge(node *netlink.Handle, name string) (*netlink.Bridge, error) {
	if name == "" {
		return nil, nil
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = name
	bridge.HardwareAddr = net.HardwareAddr{0x02, 'k', 'n', 2, 0, 0}
	if err := node.LinkAdd(bridge); err != nil {
		return nil, err
	}
	if err := l.Node.Do(passFrames); err != nil {
		return nil, err
	}
	return bridge, node.LinkSetUp(bridge)
}

// passFrames prevents br_netfilter, if the machine has loaded it, from passing frames to the rules for packets: these would be
// translated on the bridge, and a pod could not reach itself.
func passFrames() error {
	for _, key := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := writeSysctl(setting{key, "0"}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// plug connects host number n to the node: device on the node, eth0 on the host. If there is a bridge, the device becomes its
// port, and the node and the host send to the bridge.
func (l *Lab) plug(node *netlink.Handle, h *Host, n int, bridge *netlink.Bridge) error {
	far, err := h.netlink()
	if err != nil {
		return err
	}
	defer far.Close()
	pair, err := h.pair(n)
	if err != nil {
		return err
	}
	if err := node.LinkAdd(pair); err != nil {
		return fmt.Errorf("add %s: %w", h.Device, err)
	}
	eth0, err := far.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	near := side{node, pair, pair.HardwareAddr}
	peer := side{far, eth0, pair.PeerHardwareAddr}
	if err := errors.Join(near.up(), peer.up(), near.awaitUp(), peer.awaitUp()); err != nil {
		return err
	}
	if bridge != nil {
		if err := node.LinkSetMaster(near.link, bridge); err != nil {
			return fmt.Errorf("add %s to the bridge: %w", h.Device, err)
		}
		near = side{node, bridge, bridge.HardwareAddr}
		if err := near.awaitUp(); err != nil {
			return err
		}
	}
	return errors.Join(h.routeHere(peer, near.mac), h.routeThere(near, peer.mac))
}

// pair describes the veth pair between the node and the host. Fixed hardware addresses permit neighbour entries without a lookup.
func (h *Host) pair(n int) (*netlink.Veth, error) {
	raw, err := h.ns.SyscallConn()
	if err != nil {
		return nil, err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0"}
	pair.Name = h.Device
	pair.HardwareAddr = net.HardwareAddr{0x02, 'k', 'n', 0, byte(n >> 8), byte(n)}
	pair.PeerHardwareAddr = net.HardwareAddr{0x02, 'k', 'n', 1, byte(n >> 8), byte(n)}
	return pair, raw.Control(func(fd uintptr) { pair.PeerNamespace = netlink.NsFd(int(fd)) })
}

// up starts the device.
func (s side) up() error {
	if err := s.LinkSetUp(s.link); err != nil {
		return fmt.Errorf("start %s: %w", s.link.Attrs().Name, err)
	}
	return nil
}

// awaitUp returns when the device can send. The kernel activates the first started end in a work queue, and drops earlier
// packets. Since Linux 6.8 a query for a link waits for that work, so one round usually suffices.
func (s side) awaitUp() error {
	name := s.link.Attrs().Name
	return await(name+" up", func() (bool, error) {
		link, err := s.LinkByIndex(s.link.Attrs().Index)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

// awaitLocal returns when the host accepts packets to its IPv6 address. Even without duplicate address detection, the kernel adds
// the address to its local routes in a work queue, after it has acknowledged the address.
func (h *Host) awaitLocal(addrs ...netip.Addr) error {
	handle, err := h.netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, addr := range addrs {
		if addr.Is4() {
			continue
		}
		err := await(addr.String()+" local", func() (bool, error) {
			routes, err := handle.RouteGet(addr.AsSlice())
			if errors.Is(err, unix.ENETUNREACH) {
				return false, nil
			}
			return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, err
		})
		if err != nil {
			return fmt.Errorf("address %s: %w", h.Name, err)
		}
	}
	return nil
}

// await polls until ready returns true, for states that the kernel does not announce. It fails after ten seconds or more.
func await(what string, ready func() (bool, error)) error {
	for range 10_000 {
		if yes, err := ready(); err != nil || yes {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("await %s: %w", what, os.ErrDeadlineExceeded)
}

// routeHere gives the host its addresses and its default routes to the node's hardware address.
func (h *Host) routeHere(s side, node net.HardwareAddr) error {
	return errors.Join(
		s.address(h.IPv4, 0), s.address(h.IPv6, 0),
		s.neighbour(gateway4, node), s.neighbour(gateway6, node),
		s.defaultVia(gateway4, h.IPv4), s.defaultVia(gateway6, h.IPv6),
	)
}

// routeThere adds the routes to the host on the node.
func (h *Host) routeThere(s side, host net.HardwareAddr) error {
	var errs []error
	for _, addr := range h.Addrs() {
		route := &netlink.Route{LinkIndex: s.link.Attrs().Index, Dst: single(addr), Scope: netlink.SCOPE_LINK}
		if err := s.RouteAdd(route); err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", addr, err))
		}
		errs = append(errs, s.neighbour(addr, host))
	}
	return errors.Join(errs...)
}

// address adds the node's addresses to eth0, the primary ones first. Further ones are deprecated, so that the kernel chooses them
// as a source last.
func (l *Lab) address(node *netlink.Handle, further []netip.Addr) error {
	eth0, err := node.LinkByName(l.Client.Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", l.Client.Device, err)
	}
	s := side{Handle: node, link: eth0}
	errs := []error{s.address(l.Node.IPv4, 0), s.address(l.Node.IPv6, 0)}
	for _, addr := range further {
		errs = append(errs, s.address(addr, unix.IFA_F_DEPRECATED))
	}
	return errors.Join(errs...)
}

// route sends packets without another route to the client, which drops them.
func (l *Lab) route(node *netlink.Handle) error {
	eth0, err := node.LinkByName(l.Client.Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", l.Client.Device, err)
	}
	s := side{Handle: node, link: eth0}
	return errors.Join(s.defaultVia(l.Client.IPv4, l.Node.IPv4), s.defaultVia(l.Client.IPv6, l.Node.IPv6))
}

// address adds a single address that is usable at once.
func (s side) address(addr netip.Addr, flags int) error {
	a := &netlink.Addr{IPNet: single(addr), Flags: flags}
	if addr.Is6() {
		a.Flags |= unix.IFA_F_NODAD
	}
	if flags&unix.IFA_F_DEPRECATED != 0 {
		// The kernel derives the flag from the lifetimes: valid forever, preferred for no time.
		a.Flags &^= unix.IFA_F_DEPRECATED
		a.ValidLft, a.PreferedLft = forever, 0
	}
	if err := s.AddrAdd(s.link, a); err != nil {
		return fmt.Errorf("add address %s: %w", addr, err)
	}
	return nil
}

// forever is INFINITY_LIFE_TIME of an address.
const forever = 0xffffffff

// neighbour adds a permanent neighbour entry.
func (s side) neighbour(addr netip.Addr, mac net.HardwareAddr) error {
	err := s.NeighSet(&netlink.Neigh{
		LinkIndex:    s.link.Attrs().Index,
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("add neighbour %s: %w", addr, err)
	}
	return nil
}

// defaultVia adds a default route through gateway, with source as the preferred source address.
func (s side) defaultVia(gateway, source netip.Addr) error {
	err := s.RouteAdd(&netlink.Route{
		LinkIndex: s.link.Attrs().Index,
		Gw:        gateway.AsSlice(),
		Src:       source.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
	})
	if err != nil {
		return fmt.Errorf("add default route via %s: %w", gateway, err)
	}
	return nil
}

// single returns the network with only addr, in the form of the netlink package.
func single(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}
