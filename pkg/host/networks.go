package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Networks are the addresses and the routes of this machine.
type Networks struct {
	// Addresses are those of interfaces through which other machines reach this machine: neither loopback nor dummy
	// interfaces. Programs give such interfaces the addresses of Services, for example kube-proxy in mode ipvs and the
	// node-local DNS cache.
	Addresses []netip.Addr
	Routes    []Route
}

// Route is a unicast route. Routes to the addresses of this machine are none.
type Route struct {
	Prefix netip.Prefix
	// Devices are the outgoing interfaces that are up.
	Devices []string
	// Main is true for routes of the table main. Of two such routes with the same prefix, the kernel uses the one with
	// the smaller metric.
	Main   bool
	Metric int
}

// ReadNetworks reads the addresses and the routes. A list that changes meanwhile may be incomplete.
func ReadNetworks() (n Networks, err error) {
	links, err := netlink.LinkList()
	if err = listed("interfaces", err); err != nil {
		return n, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if l.Type() == "dummy" || l.Attrs().Name == "lo" {
			continue
		}
		addrs, err := addressesOf(l)
		if err != nil {
			return n, err
		}
		for _, p := range addrs {
			n.Addresses = append(n.Addresses, p.Addr())
		}
	}
	n.Routes, err = routes(names)
	return n, err
}

// listed returns the error of a list of the kernel. An interrupted list, which may be incomplete, is no error.
func listed(what string, err error) error {
	if err == nil || errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return fmt.Errorf("list %s: %w", what, err)
}

// addressesOf returns the addresses of an interface, with the lengths of their prefixes.
func addressesOf(l netlink.Link) (list []netip.Prefix, err error) {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	for _, a := range addrs {
		ones, _ := a.Mask.Size()
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			list = append(list, netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	return list, listed("addresses of "+l.Attrs().Name, err)
}

// routes returns the unicast routes of all tables. names are the names of interfaces by their index.
func routes(names map[int]string) (list []Route, err error) {
	for _, f := range inet.Families {
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNICAST}
		const by = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_TYPE
		err := netlink.RouteListFilteredIter(int(f.Number()), all, by, func(r netlink.Route) bool {
			route := Route{
				Prefix: prefixOf(f, &r), Main: r.Table == unix.RT_TABLE_MAIN, Metric: r.Priority, Devices: devices(&r, names),
			}
			if r.Type == unix.RTN_UNICAST && r.Table != unix.RT_TABLE_LOCAL && len(route.Devices) > 0 {
				list = append(list, route)
			}
			return true
		})
		if err = listed("routes of "+f.String(), err); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// prefixOf returns the destination of a route. The default route has none.
func prefixOf(f inet.Family, r *netlink.Route) netip.Prefix {
	if r.Dst != nil {
		if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			ones, _ := r.Dst.Mask.Size()
			return netip.PrefixFrom(addr.Unmap(), ones)
		}
	}
	return netip.PrefixFrom(inet.Unspecified[f], 0)
}

// devices returns the interfaces of the next hops that are up.
func devices(r *netlink.Route, names map[int]string) (list []string) {
	add := func(index, flags int) {
		name, up := names[index], flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0
		if name != "" && up && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	if len(r.MultiPath) == 0 {
		add(r.LinkIndex, r.Flags)
	}
	for _, hop := range r.MultiPath {
		add(hop.LinkIndex, hop.Flags)
	}
	return list
}

// ReversePathDrops returns the number of packets that the kernel has dropped by reverse path filtering, in the network
// namespace of the calling thread since it exists. ok is false if the kernel does not report it.
func ReversePathDrops() (n uint64, ok bool) {
	text, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, false
	}
	return counterOf(string(text), "TcpExt:", "IPReversePathFilter")
}

// counterOf returns a counter in the form of /proc/net/netstat: a line of names, and then a line of values with the
// same first word.
func counterOf(text, group, name string) (n uint64, ok bool) {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, name); i > 0 && i < len(fields) {
			n, err := strconv.ParseUint(fields[i], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
