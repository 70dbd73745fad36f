package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Lookup asks the kernel for one entry, by the addresses of its first packet as they were before any translation; nil means that there
// is none. The process needs CAP_NET_ADMIN.
func Lookup(p model.Protocol, from, to netip.AddrPort) (*Flow, error) {
	s, err := openSocket()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }() // it was only read from
	if err := s.request(msgGet, 0, nfFamily(model.FamilyOf(to.Addr())), tupleOf(p, from, to)); err != nil {
		return nil, fmt.Errorf("look up a conntrack entry: %w", err)
	}
	for {
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look up a conntrack entry: %w", err)
		}
		for m := range messages(s.buf[:n]) {
			switch {
			case m.seq != s.seq:
			case m.typ != unix.NLMSG_ERROR:
				var f Flow
				if _, ok := parse(m.payload, &f); !ok {
					return nil, errTruncated
				}
				return &f, nil
			case errors.Is(m.errno(), unix.ENOENT):
				return nil, nil
			default:
				return nil, fmt.Errorf("look up a conntrack entry: %w", m.errno())
			}
		}
	}
}

// tupleOf is the attribute for the first direction of a connection.
func tupleOf(p model.Protocol, from, to netip.AddrPort) []byte {
	source, destination := uint16(1), uint16(2) // CTA_IP_V4_SRC, CTA_IP_V4_DST
	if to.Addr().Is6() {
		source, destination = 3, 4
	}
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	ip := appendAttribute(appendAttribute(nil, source, from.Addr().AsSlice()), destination, to.Addr().AsSlice())
	proto := appendAttribute(nil, protoNumber, []byte{byte(p)})
	proto = appendAttribute(appendAttribute(proto, protoSourcePort, port(from.Port())), protoDestinationPort, port(to.Port()))
	return appendAttribute(nil, attrTupleOrig|nested, appendAttribute(appendAttribute(nil, tupleIP|nested, ip), tupleProto|nested, proto))
}
