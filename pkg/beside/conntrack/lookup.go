package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Lookup returns the entry of a flow, or nil if it has none. from and to are the source and destination of the flow's
// first packet before any translation. If the default zone has no entry, Lookup searches all zones, because a rule of
// another program may have selected the zone. The process needs CAP_NET_ADMIN.
func Lookup(p inet.Protocol, from, to netip.AddrPort) (*Flow, error) {
	s, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // read only
	var tuple netlink.Encoder
	appendTuple(&tuple, attrTupleOrig, p, from, to)
	m, err := s.AskOne(msgGet, inet.FamilyOf(to.Addr()).Number(), tuple.Buf)
	if errors.Is(err, unix.ENOENT) {
		return search(p, from, to)
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

// search returns the entry of a flow in any zone: the kernel finds an entry of another zone only if it gets the zone.
func search(p inet.Protocol, from, to netip.AddrPort) (found *Flow, err error) {
	n, err := OpenNetlink()
	if err != nil {
		return nil, err
	}
	defer func() { _ = n.Close() }() // read only
	_, _, err = n.Each(context.Background(), inet.FamilyOf(to.Addr()), func(f *Flow) {
		if f.Protocol == p && f.Source == from && f.Destination == to {
			found = new(*f)
		}
	})
	return found, err
}

// appendTuple appends one direction of a flow.
func appendTuple(e *netlink.Encoder, typ uint16, p inet.Protocol, from, to netip.AddrPort) {
	source, destination := uint16(1), uint16(2) // CTA_IP_V4_SRC, CTA_IP_V4_DST
	if to.Addr().Is6() {
		source, destination = 3, 4
	}
	tuple := e.Nest(typ)
	ip := e.Nest(tupleIP)
	e.Attr(source, from.Addr().AsSlice())
	e.Attr(destination, to.Addr().AsSlice())
	e.Unnest(ip)
	proto := e.Nest(tupleProto)
	e.Attr(protoNumber, []byte{byte(p)})
	e.Attr(protoSourcePort, binary.BigEndian.AppendUint16(nil, from.Port()))
	e.Attr(protoDestinationPort, binary.BigEndian.AppendUint16(nil, to.Port()))
	e.Unnest(proto)
	e.Unnest(tuple)
}
