package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	netfilter "github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ipvs is the kernel's ipvs. family is its generic netlink family.
type ipvs struct {
	family int
	// excluded are the addresses of other programs' virtual servers (ipvs.excludeCIDRs).
	excluded []netip.Prefix
}

// Commands and attributes (linux/ip_vs.h).
const (
	ipvsDelService = 3
	ipvsGetService = 4
	ipvsSetDest    = 6
	ipvsGetDest    = 8

	ipvsService, ipvsDest = 1, 2

	svcAF, svcProtocol, svcAddr, svcPort, svcFwmark = 1, 2, 3, 4, 5

	destAddr, destPort, destForward, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
	destActive, destInactive, destFamily                              = 7, 8, 11
)

// openIPVS returns nil if ipvs is neither loaded nor built in. It lists all families, because a request for a family
// by name would load its module.
func openIPVS(excluded []netip.Prefix) (*ipvs, error) {
	families, err := netlink.GenlFamilyList()
	if err != nil {
		return nil, fmt.Errorf("list families of generic netlink: %w", err)
	}
	for _, f := range families {
		if f.Name == "IPVS" {
			return &ipvs{int(f.ID), excluded}, nil
		}
	}
	return nil, nil
}

// server is a virtual server.
type server struct {
	addr     netip.Addr
	protocol uint16
	port     uint16
}

func (s server) String() string {
	return fmt.Sprintf("%s %s", strings.ToUpper(inet.Protocol(s.protocol).String()), netip.AddrPortFrom(s.addr, s.port))
}

func (s server) attribute() *nl.RtAttr {
	a := nl.NewRtAttr(ipvsService|unix.NLA_F_NESTED, nil)
	a.AddRtAttr(svcAF, nl.Uint16Attr(uint16(inet.FamilyOf(s.addr).Number())))
	a.AddRtAttr(svcProtocol, nl.Uint16Attr(s.protocol))
	a.AddRtAttr(svcAddr, s.addr.AsSlice())
	a.AddRtAttr(svcPort, binary.BigEndian.AppendUint16(nil, s.port))
	return a
}

// dest is a real server of a virtual server. raw has its attributes.
type dest struct {
	raw                      []byte
	weight, active, inactive uint32
}

func (v *ipvs) request(command uint8, flags int, attributes ...*nl.RtAttr) ([][]byte, error) {
	r := nl.NewNetlinkRequest(v.family, flags)
	r.AddData(&nl.Genlmsg{Command: command, Version: 1})
	for _, a := range attributes {
		r.AddData(a)
	}
	return r.Execute(unix.NETLINK_GENERIC, 0)
}

// list requests objects and returns the attributes of each, which are nested in an attribute of type typ.
func (v *ipvs) list(command uint8, typ uint16, attributes ...*nl.RtAttr) (list [][]byte, err error) {
	replies, err := v.request(command, unix.NLM_F_DUMP, attributes...)
	for _, m := range replies {
		list = append(list, object(m, typ))
	}
	return list, err
}

// object returns the attributes of the object in a message, which are nested in an attribute of type typ.
func object(m []byte, typ uint16) []byte {
	return netfilter.Find(m[min(nl.SizeofGenlmsg, len(m)):], typ)
}

// servers returns the virtual servers that have an address and are not excluded. Virtual servers of a firewall mark
// are not kube-proxy's.
func (v *ipvs) servers() (list []server, err error) {
	services, err := v.list(ipvsGetService, ipvsService)
	if err != nil {
		return nil, fmt.Errorf("list virtual servers of ipvs: %w", err)
	}
	for _, a := range services {
		s, ok := serverOf(a)
		if ok && !slices.ContainsFunc(v.excluded, func(p netip.Prefix) bool { return p.Contains(s.addr) }) {
			list = append(list, s)
		}
	}
	return list, nil
}

// serverOf parses a virtual server's attributes. It returns false for a virtual server of a firewall mark, which has
// no address.
func serverOf(attributes []byte) (s server, ok bool) {
	find := func(typ uint16) []byte { return netfilter.Find(attributes, typ) }
	family, protocol, addr := find(svcAF), find(svcProtocol), find(svcAddr)
	if len(find(svcFwmark)) > 0 || len(family) < 2 || len(protocol) < 2 || len(addr) < 16 {
		return s, false
	}
	s = server{protocol: binary.NativeEndian.Uint16(protocol), port: netfilter.Uint16(find(svcPort))}
	if binary.NativeEndian.Uint16(family) == unix.AF_INET {
		s.addr = netip.AddrFrom4([4]byte(addr))
	} else {
		s.addr = netip.AddrFrom16([16]byte(addr))
	}
	return s, true
}

func (v *ipvs) dests(s server) (list []dest, err error) {
	raw, err := v.list(ipvsGetDest, ipvsDest, s.attribute())
	if err != nil {
		return nil, fmt.Errorf("list real servers of %s: %w", s, err)
	}
	for _, a := range raw {
		number := func(typ uint16) uint32 {
			v := netfilter.Find(a, typ)
			if len(v) < 4 {
				return 0
			}
			return binary.NativeEndian.Uint32(v)
		}
		list = append(list, dest{a, number(destWeight), number(destActive), number(destInactive)})
	}
	return list, nil
}

// quiesce sets the weight of a real server to 0, so that it gets no new connections.
func (v *ipvs) quiesce(s server, d dest) error {
	a := nl.NewRtAttr(ipvsDest|unix.NLA_F_NESTED, nil)
	for _, typ := range []uint16{destAddr, destPort, destForward, destUpper, destLower, destFamily} {
		if value := netfilter.Find(d.raw, typ); value != nil {
			a.AddRtAttr(int(typ), value)
		}
	}
	a.AddRtAttr(destWeight, nl.Uint32Attr(0))
	if _, err := v.request(ipvsSetDest, unix.NLM_F_ACK, s.attribute(), a); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop new connections to %s: %w", s, err)
	}
	return nil
}

func (v *ipvs) remove(s server) error {
	if _, err := v.request(ipvsDelService, unix.NLM_F_ACK, s.attribute()); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete virtual server %s: %w", s, err)
	}
	return nil
}

// drain removes the virtual servers without connections, and stops new connections to the other ones. If patient is
// false, it removes all virtual servers. It returns the remaining ones and the number of removed ones.
func (v *ipvs) drain(patient bool) (left []server, removed int, err error) {
	servers, err := v.servers()
	if err != nil {
		return nil, 0, err
	}
	var errs []error
	for _, s := range servers {
		busy := false
		if patient {
			busy, err = v.drainOne(s)
			errs = append(errs, err)
		}
		if !busy {
			if err = v.remove(s); err == nil {
				removed++
				continue
			}
			errs = append(errs, err)
		}
		left = append(left, s)
	}
	return left, removed, errors.Join(errs...)
}

// drainOne stops new connections to a virtual server, and reports whether it still has connections.
func (v *ipvs) drainOne(s server) (busy bool, err error) {
	dests, err := v.dests(s)
	if err != nil {
		return true, err
	}
	stopped := false
	for _, d := range dests {
		if d.weight == 0 {
			continue
		}
		if err := v.quiesce(s, d); err != nil {
			return true, err
		}
		stopped = true
	}
	if stopped { // connections may have begun after the first list
		if dests, err = v.dests(s); err != nil {
			return true, err
		}
	}
	return slices.ContainsFunc(dests, func(d dest) bool { return d.active+d.inactive > 0 }), nil
}
