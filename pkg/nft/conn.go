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

// errTruncated says that the end of what was received is missing.
var errTruncated = errors.New("a reply is truncated")

// errSilence says that the kernel, which works on a request while it is sent, has not answered it.
var errSilence = errors.New("no reply")

// Conn is one lasting netlink connection to nftables, in the network namespace of the thread that opened it. It must
// not be used by two goroutines at once.
type Conn struct {
	fd int
	// seq is the number of the last message that was sent; none is used twice, so that no late answer is taken for another's.
	seq uint32
	buf []byte
	// sndbuf is the size that the socket's send buffer is known to have.
	sndbuf int
	// rcvbuf is the size that the receive buffer is known to have, 0 if that isn't known.
	rcvbuf int
	// broken says that something went wrong with the socket, which is replaced before it is used again.
	broken bool
}

// readBuffer is the size of one read: larger ones make dumps no faster (the kernel fills at most 32 KiB).
const readBuffer = 64 << 10

// patience is how long, in microseconds, a reply is waited for. The kernel makes each while the request is sent, or the one
// before is read, so that no load delays it: what isn't there was lost.
const patience = 250_000

// Open opens a connection. The process needs CAP_NET_ADMIN.
func Open() (*Conn, error) {
	fd, err := openSocket()
	if err != nil {
		return nil, err
	}
	return &Conn{fd: fd, buf: make([]byte, readBuffer)}, nil
}

func openSocket() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: patience})
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("bind netlink socket: %w", err), unix.Close(fd))
	}
	// Both only improve error messages and shorten replies; neither is missed where it fails.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	// Every message of a failing batch may be answered with an error of its own.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	return fd, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// Port returns the number of the socket that the next request is sent by, which no other netlink socket in the network namespace has,
// as [Commit.Port] tells it.
func (c *Conn) Port() (uint32, error) {
	c.ready()
	address, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return address.(*unix.SockaddrNetlink).Pid, nil
}

// ready replaces a socket with which something went wrong: answers may be waiting in it, a dump may not have come to its end, or it
// may be closed. Where there can't be another one, as without file descriptors, the old one has to do.
func (c *Conn) ready() {
	if !c.broken {
		return
	}
	fd, err := openSocket()
	if err != nil {
		c.drain()
		return
	}
	if !sameNamespace(fd, c.fd) {
		_ = unix.Close(fd)
		c.drain()
		return
	}
	_ = unix.Close(c.fd)
	c.fd, c.sndbuf, c.rcvbuf, c.broken = fd, 0, 0, false
}

// sameNamespace reports whether two sockets are in the same network namespace, or one of them is none.
func sameNamespace(a, b int) bool {
	one, err := unix.GetsockoptUint64(a, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	other, gone := unix.GetsockoptUint64(b, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err != nil || gone != nil || one == other
}

// fails notes that something went wrong with the socket.
func (c *Conn) fails(err error) error {
	c.broken = true
	return err
}

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
	c.ready()
	if err := c.growSendBuffer(len(b.buf)); err != nil {
		return err
	}
	c.awaitEchoes(b)
	first := c.seq + 1
	c.seq = b.number(first)
	if err := unix.Sendto(c.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return c.fails(fmt.Errorf("send batch of %d bytes: %w", len(b.buf), err))
	}
	return c.replies(b, first, first+ack)
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
		return c.fails(fmt.Errorf("set send buffer to %d bytes: %w", need, err))
	}
	got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return c.fails(fmt.Errorf("read send buffer size: %w", err))
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
	const most = 1 << 10 // a descriptor that isn't ours any more may never be empty
	for range most {
		_, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		if err != nil && err != unix.EINTR && err != unix.ENOBUFS {
			return
		}
	}
}

// answers are what the kernel has said so far to a batch.
type answers struct {
	// first and ack are the numbers of its first message, and of the one that is acknowledged.
	first, ack uint32
	acked      bool
	// refused is the first error; lost tells why there may have been others.
	refused, lost error
}

// replies reads the answers to a batch. The kernel works on a batch within sendmsg, so all of them are queued already: an
// empty queue without the acknowledgement means that it got lost.
func (c *Conn) replies(b *Batch, first, ack uint32) error {
	a := answers{first: first, ack: ack}
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return c.concluded(&a)
		case err == unix.ENOBUFS && a.lost == nil:
			a.lost = err // more errors than there was room for; some are there
		case err != nil:
			a.lost = err
			return c.concluded(&a)
		case !forEachMessage(c.buf[:n], func(h header, payload []byte) { a.message(b, h, payload) }):
			a.lost = errTruncated
		}
	}
}

func (a *answers) message(b *Batch, h header, payload []byte) {
	if h.typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELSETELEM {
		b.reported(payload)
		return
	}
	if h.typ != unix.NLMSG_ERROR || len(payload) < 4 || h.seq-a.first > a.ack-a.first+1 {
		return
	}
	switch errno := errnoOf(payload); {
	case errno != 0 && a.refused == nil:
		why := extAck(h, payload)
		if errno == unix.ENFILE && why == "" {
			why = " (it is full)" // of a set, which is all that the kernel means by it here
		}
		a.refused = fmt.Errorf("%s: %w%s", b.describe(h.seq), errno, why)
	case errno == 0 && h.seq == a.ack:
		a.acked = true
	}
}

// concluded tells what became of a batch. A single error means that nothing was done. The acknowledgement alone doesn't say that
// there was none: the message may have been right, and another one wrong.
func (c *Conn) concluded(a *answers) error {
	switch {
	case a.lost != nil:
		c.broken = true
		if a.refused == nil {
			return fmt.Errorf("read replies to batch: %w: %w", a.lost, ErrUnknown)
		}
	case a.refused == nil && !a.acked:
		return c.fails(fmt.Errorf("commit batch: no acknowledgement: %w", ErrUnknown))
	}
	return a.refused
}

type header struct {
	typ, flags uint16
	// port is that of the socket whose request the message is about.
	seq, port uint32
}

// ends reports whether nothing follows in answer to a request.
func (h header) ends() bool { return h.typ == unix.NLMSG_DONE || h.typ == unix.NLMSG_ERROR }

// forEachMessage calls f for each message. It reports false where the last one isn't whole.
func forEachMessage(b []byte, f func(header, []byte)) bool {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return false
		}
		f(header{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
			port:  binary.NativeEndian.Uint32(b[12:]),
		}, b[unix.NLMSG_HDRLEN:n])
		b = b[min((n+3)&^3, len(b)):]
	}
	return len(b) == 0
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
	const attempts = 100 // some ten milliseconds of somebody who commits as often as can be
	for range attempts {
		begin()
		err := c.dumpOnce(msg, family, request, nil, f)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
		runtime.Gosched()
	}
	return fmt.Errorf("list nftables objects: the ruleset kept changing: %w", unix.EINTR)
}

// dumpOnce fails with EINTR where the ruleset changes meanwhile, unless torn takes that.
func (c *Conn) dumpOnce(msg uint16, family Family, request []byte, torn *bool, f func(attrs []byte) error) error {
	if err := c.request(msg, unix.NLM_F_DUMP, family, request); err != nil {
		return err
	}
	l := listing{seq: c.seq, torn: torn}
	err := c.receive(func(h header, payload []byte) bool {
		l.message(h, payload, f)
		return l.done
	})
	if err != nil {
		return fmt.Errorf("list nftables objects: %w", err)
	}
	return l.failed
}

// receive calls f for the messages of the answer to a request, until it returns true.
func (c *Conn) receive(f func(header, []byte) (done bool)) error {
	for done := false; !done; {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return c.fails(errSilence)
		case err != nil:
			return c.fails(fmt.Errorf("read: %w", err))
		}
		whole := forEachMessage(c.buf[:n], func(h header, payload []byte) {
			if h.seq == c.seq && !done {
				done = f(h, payload)
			}
		})
		if !whole || n == 0 {
			return c.fails(errTruncated)
		}
	}
	return nil
}

// listing is how far the answer to a request for a list has been read.
type listing struct {
	seq    uint32
	done   bool
	failed error
	// torn, unless nil, takes that the ruleset has changed meanwhile, which is a failure otherwise.
	torn *bool
}

// message reads one message of the answer, and calls f with the attributes of an object. Where the kernel has to give up in the
// middle, the message that ends the list says why.
func (l *listing) message(h header, payload []byte, f func(attrs []byte) error) {
	if l.torn != nil && h.seq == l.seq && h.flags&unix.NLM_F_DUMP_INTR != 0 {
		*l.torn = true
	}
	switch {
	case h.seq != l.seq || l.done:
	case h.flags&unix.NLM_F_DUMP_INTR != 0 && l.torn == nil:
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
	c.ready()
	c.seq++
	var b Batch
	b.seq = c.seq
	off := b.begin(unix.NFNL_SUBSYS_NFTABLES<<8|msg, unix.NLM_F_REQUEST|flags, family)
	b.buf = append(b.buf, attrs...)
	b.end(off)
	if err := unix.Sendto(c.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return c.fails(fmt.Errorf("send nftables request: %w", err))
	}
	return nil
}
