package nft

import (
	"errors"
	"fmt"
	"iter"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ErrUnknown is wrapped by errors after which it isn't known whether a batch was committed: the reply was lost.
var ErrUnknown = errors.New("outcome unknown")

// Conn is one lasting netlink connection to nftables, in the network namespace of the thread that opened it. It must
// not be used by two goroutines at once. After an error its socket is replaced.
type Conn struct{ socket *netlink.Socket }

// Open opens a connection. The process needs CAP_NET_ADMIN.
func Open() (*Conn, error) {
	socket, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	return &Conn{socket}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.socket.Close() }

// Port returns the number of the socket that the next request is sent by, which no other netlink socket in the network namespace has,
// as [Commit.Port] tells it.
func (c *Conn) Port() (uint32, error) { return c.socket.Port() }

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
	c.awaitEchoes(b)
	first, err := c.socket.Send(b.buf)
	if err != nil {
		return fmt.Errorf("send batch of %d bytes: %w", len(b.buf), err)
	}
	// The kernel works on a batch within sendmsg, so all answers are queued already: an empty queue without the acknowledgement
	// means that it got lost.
	a := answers{first: first, ack: first + ack}
	for m, err := range c.socket.Receive(false) {
		if err != nil {
			a.lost = err
			continue
		}
		a.message(b, m)
	}
	return c.concluded(&a)
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

// answers are what the kernel has said so far to a batch.
type answers struct {
	// first and ack are the numbers of its first message, and of the one that is acknowledged.
	first, ack uint32
	acked      bool
	// refused is the first error; lost tells why there may have been others.
	refused, lost error
}

func (a *answers) message(b *Batch, m netlink.Message) {
	if m.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELSETELEM {
		b.reported(m)
		return
	}
	if m.Type != unix.NLMSG_ERROR || m.Seq-a.first > a.ack-a.first+1 {
		return
	}
	switch errno := m.Errno(); {
	case errno != 0 && a.refused == nil:
		a.refused = b.refusal(m)
	case errno == 0 && m.Seq == a.ack:
		a.acked = true
	}
}

// refusal says which message the kernel refused, and why.
func (b *Batch) refusal(m netlink.Message) error {
	errno, why := m.Errno(), m.Explanation()
	if errno == unix.ENFILE && why == "" {
		why = "it is full" // of a set, which is all that the kernel means by it here
	}
	if why != "" {
		why = " (" + why + ")"
	}
	return fmt.Errorf("%s: %w%s", b.describe(m.Seq), errno, why)
}

// concluded tells what became of a batch. A single error means that nothing was done. The acknowledgement alone doesn't say that
// there was none: the message may have been right, and another one wrong.
func (c *Conn) concluded(a *answers) error {
	switch {
	case a.lost != nil:
		c.socket.Broken = true
		if a.refused == nil {
			return fmt.Errorf("read replies to batch: %w: %w", a.lost, ErrUnknown)
		}
	case a.refused == nil && !a.acked:
		c.socket.Broken = true
		return fmt.Errorf("commit batch: no acknowledgement: %w", ErrUnknown)
	}
	return a.refused
}

// dump asks for a list of objects and calls f for each, with its attributes. It starts again, with begin, when the kernel says
// that the list changed meanwhile.
func (c *Conn) dump(msg uint16, family Family, request []byte, begin func(), f func(object []byte) error) error {
	const attempts = 100 // some ten milliseconds of another program that commits as often as it can
	for range attempts {
		begin()
		torn, err := c.list(msg, family, request, f)
		if err != nil && !errors.Is(err, unix.EINTR) || err == nil && !torn {
			return err
		}
		runtime.Gosched()
	}
	return fmt.Errorf("list nftables objects: the ruleset kept changing: %w", unix.EINTR)
}

// list asks for a list of objects once, and calls f for each, with its attributes, until f fails. If the ruleset changed meanwhile, the list
// is torn: objects may be missing or come twice.
func (c *Conn) list(msg uint16, family Family, request []byte, f func(object []byte) error) (torn bool, err error) {
	for m, err := range c.ask(msg, unix.NLM_F_DUMP, family, request) {
		torn = torn || m.Flags&unix.NLM_F_DUMP_INTR != 0
		if err != nil {
			return torn, fmt.Errorf("list nftables objects: %w", err)
		}
		if m.Ends() {
			break
		}
		if err := f(m.Object()); err != nil {
			return torn, err
		}
	}
	return torn, nil
}

// ask sends a request and yields the messages of the answer; see [netlink.Socket.Ask].
func (c *Conn) ask(msg, flags uint16, family Family, request []byte) iter.Seq2[netlink.Message, error] {
	return c.socket.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|msg, flags, uint8(family), request)
}
