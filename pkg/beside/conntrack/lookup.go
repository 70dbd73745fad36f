package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Lookup returns the entry of a flow, or nil if it has none. from and to are the source and destination of the flow's
// first packet before any translation. The process needs CAP_NET_ADMIN.
func Lookup(p inet.Protocol, from, to netip.AddrPort) (*Flow, error) {
	s, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // read only
	m, err := s.AskOne(msgGet, inet.FamilyOf(to.Addr()).Number(), tupleOf(p, from, to))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	var f Flow
	if _, ok := parse(m.Object(), &f); err == nil && !ok {
		err = netlink.ErrTruncated
	}
	if err != nil {
		return nil, fmt.Errorf("look up a conntrack entry: %w", err)
	}
	return &f, nil
}

// tupleOf returns the attribute with the original direction of a flow.
func tupleOf(p inet.Protocol, from, to netip.AddrPort) []byte {
	source, destination := uint16(1), uint16(2) // CTA_IP_V4_SRC, CTA_IP_V4_DST
	if to.Addr().Is6() {
		source, destination = 3, 4
	}
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	ip := netlink.AppendAttribute(netlink.AppendAttribute(nil, source, from.Addr().AsSlice()), destination, to.Addr().AsSlice())
	proto := netlink.AppendAttribute(nil, protoNumber, []byte{byte(p)})
	proto = netlink.AppendAttribute(netlink.AppendAttribute(proto, protoSourcePort, port(from.Port())), protoDestinationPort, port(to.Port()))
	return netlink.AppendAttribute(nil, attrTupleOrig|nested, netlink.AppendAttribute(netlink.AppendAttribute(nil, tupleIP|nested, ip), tupleProto|nested, proto))
}
