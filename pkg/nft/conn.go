package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrUnknown is wrapped by errors after which it isn't known whether a batch was committed: the reply was lost.
var ErrUnknown = errors.New("outcome unknown")

// Conn is one lasting netlink connection to nftables, in the network namespace of the thread that opened it. It must
// not be used by two goroutines at once.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
	// sndbuf is the size that the socket's send buffer is known to have.
	sndbuf int
}

// readBuffer is the size of one read: larger ones make dumps no faster (the kernel fills at most 32 KiB).
const readBuffer = 64 << 10

// Open opens a connection. The process needs CAP_NET_ADMIN.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, readBuffer), seq: 1}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		c.Close()
		return nil, fmt.Errorf("bind netlink socket: %w", err)
	}
	// Both only improve error messages and shorten replies; neither is missed where it fails.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	// Every message of a failing batch may be answered with an error of its own.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// Commit sends the batch and returns nil only if the kernel has committed it. An error that wraps [ErrUnknown] means
// that it may have been; any other error means that nothing was changed. A batch can be committed once.
func (c *Conn) Commit(b *Batch) error {
	if b.err != nil {
		return b.err
	}
	if b.Empty() {
		return nil
	}
	ack := b.finish()
	if err := c.growSendBuffer(len(b.buf)); err != nil {
		return err
	}
	c.drain()
	if err := unix.Sendto(c.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send batch of %d bytes: %w", len(b.buf), err)
	}
	return c.replies(b, ack)
}

// DeleteTable deletes a table with all that is in it, and tells whether there was one.
func (c *Conn) DeleteTable(family Family, name string) (deleted bool, err error) {
	found, err := c.HasTable(family, name)
	if err != nil || !found {
		return false, err
	}
	b := NewBatch(0)
	b.DeleteTable(family, name)
	if err := c.Commit(b); err != nil {
		return false, fmt.Errorf("delete table %s %s: %w", family, name, err)
	}
	return true, nil
}

// growSendBuffer makes the socket accept a message of n bytes, which netlink must take whole.
func (c *Conn) growSendBuffer(n int) error {
	need := n + n/4 + 4096
	if need <= c.sndbuf {
		return nil
	}
	err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, need)
	if err == unix.EPERM {
		// In a user namespace, as of a rootless node, the limit is net.core.wmem_max.
		err = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, need)
	}
	if err != nil {
		return fmt.Errorf("set send buffer to %d bytes: %w", need, err)
	}
	got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("read send buffer size: %w", err)
	}
	// The kernel reports twice what was asked for, and netlink compares a message's length with this.
	if got < need {
		return fmt.Errorf("set send buffer: asked for %d bytes, got %d (net.core.wmem_max may be too small)", need, got)
	}
	c.sndbuf = need
	return nil
}

// drain throws away replies to an earlier request whose reader gave up.
func (c *Conn) drain() {
	for {
		if _, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT); err != nil {
			return
		}
	}
}

// replies reads the answers to a batch. The kernel works on a batch within sendmsg, so all of them are queued already: an
// empty queue without the acknowledgement means that it got lost.
func (c *Conn) replies(b *Batch, ack uint32) error {
	var first error
	acked := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN && first != nil:
			return first
		case err == unix.EAGAIN && acked:
			return nil
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return fmt.Errorf("commit batch: no acknowledgement: %w", ErrUnknown)
		case err != nil:
			return fmt.Errorf("read replies to batch: %w: %w", err, ErrUnknown)
		}
		forEachMessage(c.buf[:n], func(h header, payload []byte) {
			if h.typ != unix.NLMSG_ERROR || len(payload) < 4 {
				return
			}
			errno := -int32(binary.NativeEndian.Uint32(payload))
			switch {
			case errno != 0 && first == nil:
				first = fmt.Errorf("%s: %w%s", b.describe(h.seq), unix.Errno(errno), extAck(h, payload))
			case errno == 0 && h.seq == ack:
				acked = true
			}
		})
	}
}

type header struct {
	typ, flags uint16
	seq        uint32
}

// ends reports whether nothing follows in answer to a request.
func (h header) ends() bool { return h.typ == unix.NLMSG_DONE || h.typ == unix.NLMSG_ERROR }

func forEachMessage(b []byte, f func(header, []byte)) {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return
		}
		f(header{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
		}, b[unix.NLMSG_HDRLEN:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// extAck returns the kernel's own words for an error, if it gave any.
func extAck(h header, payload []byte) string {
	const capped, hasTLVs, attrMsg = 0x100, 0x200, 1
	if h.flags&hasTLVs == 0 || len(payload) < 4+unix.NLMSG_HDRLEN {
		return ""
	}
	skip := 4 + unix.NLMSG_HDRLEN
	if h.flags&capped == 0 {
		skip = 4 + int(binary.NativeEndian.Uint32(payload[4:]))
	}
	for b := payload[min(skip, len(payload)):]; len(b) >= 4; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[2:]) == attrMsg && n > 5 {
			return " (" + string(b[4:n-1]) + ")"
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return ""
}

// dump asks for a list of objects and calls f for each, with its attributes. It starts anew when the kernel says that the
// list changed meanwhile.
func (c *Conn) dump(msg uint16, family Family, request []byte, begin func(), f func(attrs []byte) error) error {
	const attempts = 10
	for range attempts {
		begin()
		err := c.dumpOnce(msg, family, request, f)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
		runtime.Gosched()
	}
	return fmt.Errorf("list nftables objects: the ruleset kept changing: %w", unix.EINTR)
}

func (c *Conn) dumpOnce(msg uint16, family Family, request []byte, f func(attrs []byte) error) error {
	if err := c.request(msg, unix.NLM_F_DUMP, family, request); err != nil {
		return err
	}
	for l := (listing{seq: c.seq}); ; {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read list of nftables objects: %w", err)
		}
		forEachMessage(c.buf[:n], func(h header, payload []byte) { l.message(h, payload, f) })
		if l.done {
			return l.failed
		}
	}
}

// listing is how far the answer to a request for a list has been read.
type listing struct {
	seq    uint32
	done   bool
	failed error
}

// message reads one message of the answer, and calls f with the attributes of an object. Where the kernel has to give up in the
// middle, the message that ends the list says why.
func (l *listing) message(h header, payload []byte, f func(attrs []byte) error) {
	switch {
	case h.seq != l.seq || l.done:
	case h.flags&unix.NLM_F_DUMP_INTR != 0:
		l.failed = unix.EINTR
		l.done = h.ends()
	case h.ends():
		l.done = true
		if errno := errnoOf(payload); errno != 0 && l.failed == nil {
			l.failed = fmt.Errorf("list nftables objects: %w", errno)
		}
	case l.failed == nil && len(payload) >= nfgenLen:
		l.failed = f(payload[nfgenLen:])
	}
}

// nfgenLen is the size of struct nfgenmsg, with which a message about an object begins.
const nfgenLen = 4

// errnoOf reads what an NLMSG_ERROR or NLMSG_DONE says.
func errnoOf(payload []byte) unix.Errno {
	if len(payload) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
}

func (c *Conn) request(msg, flags uint16, family Family, attrs []byte) error {
	c.drain()
	c.seq++
	var b Batch
	b.seq = c.seq
	off := b.begin(unix.NFNL_SUBSYS_NFTABLES<<8|msg, unix.NLM_F_REQUEST|flags, family)
	b.buf = append(b.buf, attrs...)
	b.end(off)
	if err := unix.Sendto(c.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send nftables request: %w", err)
	}
	return nil
}
