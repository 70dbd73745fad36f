package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	protoNumber          = 1
	protoSourcePort      = 2
	protoDestinationPort = 3

	filterOrigFlags = 1
	// filterProtocol is CTA_FILTER_F_CTA_PROTO_NUM of the kernel's nf_internals.h.
	filterProtocol = 1 << 3

	statusReplied = 1 << 1
	statusDNAT    = 1 << 5

	attrTypeMask = 0x3fff
	nested       = unix.NLA_F_NESTED
	nfgenLen     = 4
)

const (
	// readBuffer is the size of one read: the kernel fills at most 32 KiB.
	readBuffer = 64 << 10
	// maxDeletes is the number of entries deleted by one sendmsg. Each may be answered by an error that waits in the
	// socket's receive buffer.
	maxDeletes = 512
	// maxReads is how often the table is read if the kernel says that it was interrupted.
	maxReads = 5
)

// errInterrupted is what a reading of the table ends with that may have missed entries.
var errInterrupted = errors.New("reading was interrupted")

// errTruncated is what a reading ends with of which a part is missing.
var errTruncated = errors.New("read conntrack entries: a reply is truncated")

// errAbsent is what a kernel without connection tracking, or without its netlink interface, comes down to.
var errAbsent = errors.New("the kernel's modules nf_conntrack and nf_conntrack_netlink are missing or can't be loaded")

// Netlink is the kernel's conntrack table in the network namespace of the thread that opened it. It must not be used by two
// goroutines at once.
type Netlink struct {
	// The kernel hands out the table piece by piece as it is read; what is found is deleted meanwhile by another socket.
	read, write *socket
	batch       batch
	// unfiltered is set where the kernel doesn't know how to select by protocol.
	unfiltered bool
}

// OpenNetlink opens the table. The process needs CAP_NET_ADMIN.
func OpenNetlink() (*Netlink, error) {
	read, err := openSocket()
	if err != nil {
		return nil, err
	}
	write, err := openSocket()
	if err != nil {
		_ = read.close()
		return nil, err
	}
	return &Netlink{read: read, write: write}, nil
}

// Close closes the connection.
func (n *Netlink) Close() error { return errors.Join(n.read.close(), n.write.close()) }

// Delete reads the table once and deletes what is stale on the way; see [Table]. Memory doesn't grow with the table nor with
// the number of stale entries. After an error the connection should be closed.
func (n *Netlink) Delete(ctx context.Context, f model.Family, udp bool, stale func(*Flow) bool) (Outcome, error) {
	n.batch = batch{family: nfFamily(f), buf: n.batch.buf[:0]}
	var out Outcome
	var err error
	for range maxReads {
		out.Seen = 0
		err = n.once(ctx, udp, stale, &out)
		if !errors.Is(err, errInterrupted) {
			return out, err
		}
	}
	out.Partial = true
	return out, nil
}

func (n *Netlink) once(ctx context.Context, udp bool, stale func(*Flow) bool, out *Outcome) error {
	filter := udp && !n.unfiltered
	err := n.dump(ctx, filter, stale, out)
	if filter && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
		n.unfiltered = true
		err = n.dump(ctx, false, stale, out)
	}
	if errors.Is(err, unix.EINVAL) {
		// To nothing else in so plain a request does the kernel object.
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	if e := n.deleteBatch(out); e != nil {
		return e
	}
	return err
}

// dump asks about every entry. Kernels before 5.8 don't know the filter and ignore it: [Desired.Stale] looks at the protocol
// again.
func (n *Netlink) dump(ctx context.Context, udp bool, stale func(*Flow) bool, out *Outcome) error {
	var filter []byte
	if udp {
		filter = protocolFilter(model.UDP)
	}
	if err := n.read.request(msgGet, unix.NLM_F_DUMP, n.batch.family, filter); err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	var flow Flow
	one := func(payload []byte) error {
		raw, ok := parse(payload, &flow)
		if !ok {
			return nil
		}
		out.Seen++
		if !stale(&flow) {
			return nil
		}
		n.batch.add(raw, n.write.nextSeq())
		if n.batch.count < maxDeletes {
			return nil
		}
		return n.deleteBatch(out)
	}
	return n.read.eachOfDump(ctx, one)
}

// deleteBatch deletes what is in the batch. Entries that went by themselves meanwhile are nothing to speak of.
func (n *Netlink) deleteBatch(out *Outcome) error {
	b := &n.batch
	if b.count == 0 {
		return nil
	}
	failed, err := n.write.sendBatch(b)
	out.Deleted += b.count - failed
	b.reset()
	if err != nil {
		return fmt.Errorf("delete conntrack entries: %w", err)
	}
	return nil
}

func nfFamily(f model.Family) uint8 {
	return [...]uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[f]
}

// A batch is a row of delete messages.
type batch struct {
	family uint8
	buf    []byte
	count  int
	// last is the offset of the last message.
	last int
}

func (b *batch) reset() { b.buf, b.count, b.last = b.buf[:0], 0, 0 }

// add appends the deletion of one entry.
func (b *batch) add(e entry, seq uint32) {
	b.last = len(b.buf)
	b.buf = appendHeader(b.buf, msgDelete, 0, b.family, seq)
	// As the kernel gave them: the tuple holds the zone of a direction, if it has one of its own.
	for _, attribute := range [][]byte{e.tuple, e.zone, e.id} {
		b.buf = append(b.buf, attribute...)
		b.buf = append(b.buf, make([]byte, align(len(attribute))-len(attribute))...) // the last of a message may have lacked it
	}
	binary.NativeEndian.PutUint32(b.buf[b.last:], uint32(len(b.buf)-b.last))
	b.count++
}

// An entry holds whole attributes that tell one entry from all others.
type entry struct{ tuple, zone, id []byte }

// parse reads a conntrack message into the flow, in place. It returns false for what can't be an entry of ours: one without
// ports, or one that couldn't be named in a deletion. (A deletion without tuple would delete the whole table.)
func parse(payload []byte, f *Flow) (e entry, ok bool) {
	*f = Flow{}
	if len(payload) < nfgenLen {
		return e, false
	}
	attributes(payload[nfgenLen:], func(typ uint16, whole, value []byte) {
		switch typ {
		case attrTupleOrig:
			e.tuple = whole
			f.Protocol = parseTuple(value, &f.Source, &f.Destination, &f.Zone)
		case attrTupleReply:
			var client netip.AddrPort
			parseTuple(value, &f.Server, &client, &f.Zone)
		case attrStatus:
			status := beUint32(value)
			f.Replied, f.DNAT = status&statusReplied != 0, status&statusDNAT != 0
		case attrID:
			e.id, f.ID = whole, beUint32(value)
		case attrZone:
			e.zone, f.Zone = whole, beUint16(value)
		}
	})
	return e, f.Destination.IsValid() && f.Server.IsValid() && e.id != nil && f.Destination.Port() != 0
}

// parseTuple reads one direction; an address that is missing stays invalid.
func parseTuple(b []byte, src, dst *netip.AddrPort, zone *uint16) (p model.Protocol) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	attributes(b, func(typ uint16, _, value []byte) {
		switch typ {
		case tupleIP:
			from, to = parseAddrs(value)
		case tupleProto:
			p, fromPort, toPort = parseProto(value)
		case tupleZone:
			*zone = beUint16(value)
		}
	})
	*src, *dst = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return p
}

// parseAddrs reads CTA_IP_V4_SRC, _DST (1, 2) or CTA_IP_V6_SRC, _DST (3, 4).
func parseAddrs(b []byte) (src, dst netip.Addr) {
	attributes(b, func(typ uint16, _, value []byte) {
		addr, ok := netip.AddrFromSlice(value)
		switch {
		case !ok:
		case typ == 1 || typ == 3:
			src = addr
		case typ == 2 || typ == 4:
			dst = addr
		}
	})
	return src, dst
}

func parseProto(b []byte) (p model.Protocol, src, dst uint16) {
	attributes(b, func(typ uint16, _, value []byte) {
		switch {
		case typ == protoNumber && len(value) > 0:
			p = model.Protocol(value[0])
		case typ == protoSourcePort:
			src = beUint16(value)
		case typ == protoDestinationPort:
			dst = beUint16(value)
		}
	})
	return p, src, dst
}

// attributes calls f for every attribute, with all of it (padding included) and with its value.
func attributes(b []byte, f func(typ uint16, whole, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return
		}
		padded := min(align(n), len(b))
		f(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[:padded], b[unix.SizeofNlAttr:n])
		b = b[padded:]
	}
}

func beUint16(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func beUint32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func align(n int) int { return (n + 3) &^ 3 }

func appendAttribute(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

// appendHeader begins a message, whose length is still to be set.
func appendHeader(b []byte, msg, flags uint16, family uint8, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, msg)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, family, unix.NFNETLINK_V0, 0, 0)
}

// protocolFilter lets the kernel leave out all other protocols: a tuple to compare with, and which parts of it count.
func protocolFilter(p model.Protocol) []byte {
	proto := appendAttribute(nil, protoNumber, []byte{byte(p)})
	tuple := appendAttribute(nil, tupleProto|nested, proto)
	flags := appendAttribute(nil, filterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtocol))
	return appendAttribute(appendAttribute(nil, attrTupleOrig|nested, tuple), attrFilter|nested, flags)
}

// A socket is one netlink connection to netfilter.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, readBuffer)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = s.close()
		return nil, fmt.Errorf("bind netlink socket: %w", err)
	}
	// A reply is made while the request is sent, or the one before is read: what isn't there was lost.
	const patience = 250_000 // microseconds
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: patience}); err != nil {
		return nil, errors.Join(fmt.Errorf("set up netlink socket: %w", err), s.close())
	}
	// Both only make room for many errors at once; without them some would not be counted.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 2<<20)
	return s, nil
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

func (s *socket) nextSeq() uint32 {
	s.seq++
	return s.seq
}

func (s *socket) request(msg, flags uint16, family uint8, attrs []byte) error {
	b := append(appendHeader(nil, msg, flags, family, s.nextSeq()), attrs...)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return s.send(b)
}

func (s *socket) send(b []byte) error {
	return os.NewSyscallError("sendto", unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// eachOfDump reads the answer to a dump request to its end. It returns errInterrupted if the kernel says that entries may
// be missing.
func (s *socket) eachOfDump(ctx context.Context, f func(payload []byte) error) error {
	interrupted := false
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read conntrack entries: %w", err)
		}
		if !isWhole(s.buf[:n]) {
			return errTruncated
		}
		for m := range messages(s.buf[:n]) {
			if m.seq != s.seq {
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return dumpEnd(m.errno(), interrupted)
			default:
				if err := f(m.payload); err != nil {
					return err
				}
			}
		}
	}
}

func dumpEnd(errno unix.Errno, interrupted bool) error {
	switch {
	case errno == unix.EINTR, errno == 0 && interrupted:
		return errInterrupted
	case errno != 0:
		return fmt.Errorf("list conntrack entries: %w", errno)
	}
	return nil
}

// sendBatch sends all messages at once and returns how many the kernel refused, and the first error that isn't ENOENT. The
// kernel works on them within the system call and answers errors only, but for the last message: all answers are there.
func (s *socket) sendBatch(b *batch) (refused int, first error) {
	flags := b.buf[b.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	if err := s.send(b.buf); err != nil {
		return b.count, err
	}
	lost := false
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOBUFS:
			// More errors than there is room for, as where the buffer can't be made larger: the deletions have been done.
			lost = true
			continue
		case err == unix.EAGAIN && lost:
			return refused, first
		case err != nil:
			return refused, fmt.Errorf("read acknowledgement: %w", err)
		}
		for m := range messages(s.buf[:n]) {
			if m.typ != unix.NLMSG_ERROR {
				continue
			}
			if errno := m.errno(); errno != 0 {
				refused++
				if errno != unix.ENOENT && first == nil {
					first = errno
				}
			}
			if m.seq == s.seq {
				return refused, first
			}
		}
	}
}

type message struct {
	typ, flags uint16
	seq        uint32
	payload    []byte
}

// errno returns what an NLMSG_ERROR or NLMSG_DONE says.
func (m *message) errno() unix.Errno {
	if len(m.payload) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.payload)))
}

// isWhole reports whether a buffer has messages, and all of the last one.
func isWhole(b []byte) bool {
	for n := 0; len(b) > 0; b = b[min(align(n), len(b)):] {
		if len(b) < unix.NLMSG_HDRLEN {
			return false
		}
		if n = int(binary.NativeEndian.Uint32(b)); n < unix.NLMSG_HDRLEN || n > len(b) {
			return false
		}
		if align(n) >= len(b) {
			return true
		}
	}
	return false
}

// messages yields the netlink messages in a buffer.
func messages(b []byte) func(yield func(message) bool) {
	return func(yield func(message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				return
			}
			m := message{
				typ:     binary.NativeEndian.Uint16(b[4:]),
				flags:   binary.NativeEndian.Uint16(b[6:]),
				seq:     binary.NativeEndian.Uint32(b[8:]),
				payload: b[unix.NLMSG_HDRLEN:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}
