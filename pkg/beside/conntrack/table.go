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

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoInfo  = 4
	attrTimeout    = 7
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25
	attrStatusMask = 26

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	protoNumber          = 1
	protoSourcePort      = 2
	protoDestinationPort = 3

	filterOrigFlags = 1
	// filterProtocol is CTA_FILTER_F_CTA_PROTO_NUM of the kernel's nf_internals.h.
	filterProtocol = 1 << 3

	protoInfoTCP       = 1
	protoTCPState      = 1
	protoTCPFlags      = 4
	protoTCPReplyFlags = 5
	// tcpUnacknowledged is IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED: no acknowledgement has followed the last data.
	tcpUnacknowledged = 1 << 4

	tcpSynReceived = 2
	tcpEstablished = 3
	tcpTimeWait    = 7 // the state CLOSE is 8

	statusReplied = 1 << 1
	statusDNAT    = 1 << 5
)

const (
	// maxDeletes is the largest number of entries that one sendmsg deletes. It is limited because the kernel may
	// queue an error for each entry in the socket's receive buffer.
	maxDeletes = 512
	// checkEvery is the number of entries between two checks for cancellation during a read.
	checkEvery = 256
	// maxReads is the number of attempts to read the table. A change of the table may interrupt the kernel's listing.
	maxReads = 5
)

// errInterrupted means that an interrupted read may have missed entries.
var errInterrupted = errors.New("reading was interrupted")

// errAbsent means that the kernel lacks connection tracking or its netlink interface.
var errAbsent = errors.New("the kernel's modules nf_conntrack and nf_conntrack_netlink are missing or cannot be loaded")

// Netlink is the kernel's conntrack table in the network namespace of the thread that opened it. Only one goroutine
// at a time may use it.
type Netlink struct {
	// read receives the table in several messages. At the same time, write deletes stale entries.
	read, write *netlink.Socket
	batch       batch
	// unfiltered is true if the kernel cannot filter.
	unfiltered bool
	// most is the number of entries of a batch.
	most int
}

// OpenNetlink opens the table. The process needs CAP_NET_ADMIN.
func OpenNetlink() (*Netlink, error) {
	read, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	write, err := netlink.Open()
	if err != nil {
		_ = read.Close()
		return nil, err
	}
	return &Netlink{read: read, write: write}, nil
}

// Close closes both sockets.
func (n *Netlink) Close() error { return errors.Join(n.read.Close(), n.write.Close()) }

// Selection is a part of the table.
type Selection uint8

// The selections.
const (
	// All are all entries.
	All Selection = iota
	// UDP are the entries of UDP.
	UDP
	// Unreplied are the entries without a reply.
	Unreplied
	// TCP are the entries of TCP. Each one is deleted before the next one is read, so that few packets pass in between.
	TCP
)

// filter returns attributes with which the kernel skips other entries. Kernels before 5.15 ignore the status.
func (s Selection) filter() []byte {
	var e netlink.Encoder
	switch s {
	case UDP, TCP:
		p := inet.UDP
		if s == TCP {
			p = inet.TCP
		}
		tuple := e.Nest(attrTupleOrig)
		proto := e.Nest(tupleProto)
		e.Attr(protoNumber, []byte{byte(p)})
		e.Unnest(proto)
		e.Unnest(tuple)
		filter := e.Nest(attrFilter) // the fields of the tuple to compare
		e.Attr(filterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtocol))
		e.Unnest(filter)
	case Unreplied:
		e.Uint32(attrStatus, 0)
		e.Uint32(attrStatusMask, statusReplied)
	}
	return e.Buf
}

// Delete implements [Table]. It reads the table once, unless a read is interrupted, and deletes stale entries during
// the read. Its memory does not depend on the size of the table or the number of stale entries. After an error, call
// Close.
func (n *Netlink) Delete(ctx context.Context, f inet.Family, s Selection, stale func(*Flow) bool) (Outcome, error) {
	n.batch.reset()
	n.batch.family = f.Number()
	if n.most = maxDeletes; s == TCP {
		n.most = 1
	}
	var out Outcome
	var err error
	for range maxReads {
		out.Seen = 0
		err = n.once(ctx, s, stale, &out)
		if !errors.Is(err, errInterrupted) {
			return out, err
		}
	}
	out.Partial = true
	return out, nil
}

// Each calls f for each flow of a family, and deletes nothing. f must not keep the pointer. It returns the number of
// flows. partial is true if the kernel interrupted each attempt to read the table, so that flows may be missing or
// occur twice. f must recognise a repeated flow by its ID.
func (n *Netlink) Each(ctx context.Context, family inet.Family, f func(*Flow)) (seen int, partial bool, err error) {
	out, err := n.Delete(ctx, family, All, func(flow *Flow) bool { f(flow); return false })
	return out.Seen, out.Partial, err
}

// once makes one attempt to read the table and delete stale entries. If the kernel cannot filter, it reads without a
// filter.
func (n *Netlink) once(ctx context.Context, s Selection, stale func(*Flow) bool, out *Outcome) error {
	if n.unfiltered {
		s = All
	}
	err := n.dump(ctx, s, stale, out)
	if s != All && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
		n.unfiltered = true
		err = n.dump(ctx, All, stale, out)
	}
	if errors.Is(err, unix.EINVAL) {
		// The kernel has no other reason to reject this simple request.
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	if e := n.deleteBatch(out); e != nil {
		return e
	}
	return err
}

// dump reads the entries and deletes stale ones in batches. If the kernel ignores the filter, [Desired.Stale] checks
// the entries.
func (n *Netlink) dump(ctx context.Context, s Selection, stale func(*Flow) bool, out *Outcome) error {
	var flow Flow
	interrupted := false
	for m, err := range n.read.Ask(msgGet, unix.NLM_F_DUMP, n.batch.family, s.filter()) {
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		switch {
		case err == unix.EINTR, err == nil && m.Ends() && interrupted:
			return errInterrupted
		case err != nil:
			return fmt.Errorf("list conntrack entries: %w", err)
		}
		if raw, ok := parse(m.Object(), &flow); ok {
			out.Seen++
			if stale(&flow) {
				n.batch.add(raw)
			}
		}
		if n.batch.count == n.most {
			if err := n.deleteBatch(out); err != nil {
				return err
			}
		}
		if out.Seen%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// deleteBatch deletes the entries in the batch. An entry that no longer exists is no error.
func (n *Netlink) deleteBatch(out *Outcome) error {
	b := &n.batch
	if b.count == 0 {
		return nil
	}
	failed, err := sendBatch(n.write, b)
	out.Deleted += b.count - failed
	b.reset()
	if err != nil {
		return fmt.Errorf("delete conntrack entries: %w", err)
	}
	return nil
}

// A batch is a sequence of delete messages.
type batch struct {
	netlink.Encoder
	family uint8
	count  int
	// last is the offset of the last message.
	last int
}

func (b *batch) reset() { b.Buf, b.count, b.last = b.Buf[:0], 0, 0 }

// add appends the deletion of one entry.
func (b *batch) add(e entry) {
	b.last = b.Begin(msgDelete, 0, 0, b.family)
	// The tuple is a copy from the kernel's message. If this direction has its own zone, the tuple includes the zone.
	b.Attr(attrTupleOrig|unix.NLA_F_NESTED, e.tuple)
	if e.zone != nil {
		b.Attr(attrZone, e.zone)
	}
	b.Attr(attrID, e.id)
	b.Finish(b.last)
	b.count++
}

// An entry has the attributes that identify an entry of the kernel's table.
type entry struct{ tuple, zone, id []byte }

// parse reads the attributes of an entry into f, and returns the attributes that identify it. It returns false for an
// entry without ports, because it cannot belong to a Service. It also returns false for an entry without a tuple or
// an ID, because a deletion without a tuple would delete the whole table.
func parse(attributes []byte, f *Flow) (e entry, ok bool) {
	*f = Flow{}
	for typ, v := range netlink.Attributes(attributes) {
		switch typ {
		case attrTupleOrig:
			e.tuple = v
			f.Protocol = parseTuple(v, &f.Source, &f.Destination, &f.Zone)
		case attrTupleReply:
			parseTuple(v, &f.Server, &f.Client, &f.Zone)
		case attrStatus:
			status := netlink.Uint32(v)
			f.Replied, f.DNAT = status&statusReplied != 0, status&statusDNAT != 0
		case attrProtoInfo:
			tcp := netlink.Find(v, protoInfoTCP)
			state := netlink.Find(tcp, protoTCPState)
			f.Unconfirmed = len(state) > 0 && state[0] == tcpSynReceived
			f.Established = len(state) > 0 && state[0] == tcpEstablished
			f.Closed = len(state) > 0 && state[0] >= tcpTimeWait
			for _, direction := range [...]uint16{protoTCPFlags, protoTCPReplyFlags} {
				flags := netlink.Find(tcp, direction)
				f.Unacknowledged = f.Unacknowledged || len(flags) > 0 && flags[0]&tcpUnacknowledged != 0
			}
		case attrTimeout:
			f.Expires = netlink.Uint32(v)
		case attrID:
			e.id, f.ID = v, netlink.Uint32(v)
		case attrZone:
			e.zone, f.Zone = v, netlink.Uint16(v)
		}
	}
	return e, f.Destination.IsValid() && f.Server.IsValid() && len(e.id) == 4 && f.Destination.Port() != 0
}

// parseTuple reads one direction. A missing address stays invalid.
func parseTuple(b []byte, src, dst *netip.AddrPort, zone *uint16) (p inet.Protocol) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case tupleIP:
			from, to = parseAddrs(v)
		case tupleProto:
			p, fromPort, toPort = parseProto(v)
		case tupleZone:
			*zone = netlink.Uint16(v)
		}
	}
	*src, *dst = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return p
}

// parseAddrs reads CTA_IP_V4_SRC, _DST (1, 2) or CTA_IP_V6_SRC, _DST (3, 4).
func parseAddrs(b []byte) (src, dst netip.Addr) {
	for typ, v := range netlink.Attributes(b) {
		addr, ok := netip.AddrFromSlice(v)
		switch {
		case !ok:
		case typ == 1 || typ == 3:
			src = addr
		case typ == 2 || typ == 4:
			dst = addr
		}
	}
	return src, dst
}

func parseProto(b []byte) (p inet.Protocol, src, dst uint16) {
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == protoNumber && len(v) > 0:
			p = inet.Protocol(v[0])
		case typ == protoSourcePort:
			src = netlink.Uint16(v)
		case typ == protoDestinationPort:
			dst = netlink.Uint16(v)
		}
	}
	return p, src, dst
}

// sendBatch sends all messages in one system call, in which the kernel also processes them. The kernel queues one
// answer for each failed message, and one for the last message. sendBatch returns the number of failed messages, and
// the first error other than ENOENT.
func sendBatch(s *netlink.Socket, b *batch) (refused int, first error) {
	b.AddFlags(b.last, unix.NLM_F_ACK)
	if _, err := s.Send(b.Buf); err != nil {
		return b.count, err
	}
	answered := false
	for m, err := range s.Receive(false) {
		errno := m.Errno()
		switch {
		case err == unix.ENOBUFS:
			// The receive buffer is too small for all errors and cannot be enlarged. The kernel has processed all
			// deletions.
			answered = true
		case err != nil:
			return refused, fmt.Errorf("read acknowledgement: %w", err)
		case errno != 0:
			refused++
			if errno != unix.ENOENT && first == nil {
				first = errno
			}
		}
		answered = answered || m.Seq == s.Seq
	}
	if !answered {
		return refused, fmt.Errorf("read acknowledgement: %w", unix.EAGAIN)
	}
	return refused, first
}
