package nft

import (
	"errors"
	"fmt"
	"iter"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ErrUnknown means that the kernel's reply was lost: the batch may have been committed or not.
var ErrUnknown = errors.New("outcome unknown")

// Conn is a netlink connection to nftables in the network namespace of the thread that opened it. It is not safe for
// concurrent use. It replaces its socket after an error.
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

// Commit sends the batch and returns nil only if the kernel has committed it. After an error that wraps [ErrUnknown],
// the kernel may have committed the batch. After any other error, the kernel has changed nothing. Commit a batch only
// once.
func (c *Conn) Commit(b *Batch) error {
	if b.Err != nil || b.Empty() {
		return b.Err
	}
	ack := b.requestAck()
	b.control(unix.NFNL_MSG_BATCH_END)
	if b.Reports > 0 {
		b.reserve(c.socket.GrowReceiveBuffer)
	}
	first, err := c.socket.Send(b.Buf)
	if err != nil {
		return fmt.Errorf("send batch of %d bytes: %w", len(b.Buf), err)
	}
	// The kernel processes a batch within sendmsg, so all answers are queued already. If the queue is empty and the
	// acknowledgement is missing, the kernel has dropped the acknowledgement.
	return c.outcome(b, first, first+ack, c.socket.Receive(false))
}

// outcome returns the result of a batch. first and ack are the sequence numbers of the first and of the acknowledged
// message. Any error reply means that the kernel changed nothing. An acknowledgement does not mean success: another
// message of the batch may have failed.
func (c *Conn) outcome(b *Batch, first, ack uint32, answers iter.Seq2[netlink.Message, error]) error {
	var refused, lost error // the first error, and the reason why other answers may be missing
	acked := false
	for m, err := range answers {
		switch errno := m.Errno(); {
		case err != nil:
			lost = err
		case m.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELSETELEM:
			b.reported(m)
		case m.Type != unix.NLMSG_ERROR || m.Seq-first > ack-first+1: // of another batch
		case errno != 0 && refused == nil:
			refused = b.refusal(m)
		case errno == 0 && m.Seq == ack:
			acked = true
		}
	}
	unknown := refused == nil && (lost != nil || !acked)
	c.socket.Broken = c.socket.Broken || lost != nil || unknown
	switch {
	case unknown && lost != nil:
		return fmt.Errorf("read replies to batch: %w: %w", lost, ErrUnknown)
	case unknown:
		return fmt.Errorf("commit batch: no acknowledgement: %w", ErrUnknown)
	}
	return refused
}

// DeleteTable deletes a table with its content, and returns whether the table existed.
func (c *Conn) DeleteTable(family inet.Family, name string) (deleted bool, err error) {
	found, err := c.HasTable(family, name)
	if err != nil || !found {
		return false, err
	}
	b := NewBatch(0)
	b.DeleteTable(family, name)
	if err := c.Commit(b); err != nil {
		return false, fmt.Errorf("delete table %s %s: %w", family.Keyword(), name, err)
	}
	return true, nil
}

// DeleteTables deletes the tables with a name in both families, in the network namespace of the calling thread. It
// returns the deleted tables, such as "ip kube-nftproxy". A missing table is not an error.
func DeleteTables(name string) (deleted []string, err error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the commits are done
	var errs []error
	for _, f := range inet.Families {
		found, err := conn.DeleteTable(f, name)
		errs = append(errs, err)
		if found {
			deleted = append(deleted, fmt.Sprintf("%s %s", f.Keyword(), name))
		}
	}
	return deleted, errors.Join(errs...)
}

// refusal returns an error with the rejected message and the kernel's reason.
func (b *Batch) refusal(m netlink.Message) error {
	errno, why := m.Errno(), m.Explanation()
	if errno == unix.ENFILE && why == "" {
		why = "the set is full" // ENFILE has no other meaning here
	}
	if why != "" {
		why = " (" + why + ")"
	}
	return fmt.Errorf("%s: %w%s", b.describe(m.Seq), errno, why)
}

// dump requests a list of objects. parse calls add for the objects in a message. If the list changes meanwhile, dump
// starts again.
func dump[T any](
	c *Conn, msg uint16, family uint8, request []byte, parse func(object []byte, add func(T)) error,
) (list []T, err error) {
	const attempts = 100 // about ten milliseconds while another program commits continuously
	for range attempts {
		list = nil
		torn, err := c.list(msg, family, request, func(object []byte) error {
			return parse(object, func(o T) { list = append(list, o) })
		})
		switch {
		case err == nil && !torn:
			return list, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return nil, err
		}
		runtime.Gosched()
	}
	return nil, fmt.Errorf("list nftables objects: the ruleset kept changing: %w", unix.EINTR)
}

// list requests a list of objects once, and calls f with the attributes of each until f fails. torn means that the
// ruleset changed meanwhile: objects may be missing or listed twice.
func (c *Conn) list(msg uint16, family uint8, request []byte, f func(object []byte) error) (torn bool, err error) {
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
func (c *Conn) ask(msg, flags uint16, family uint8, request []byte) iter.Seq2[netlink.Message, error] {
	return c.socket.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|msg, flags, family, request)
}

// Refused is a rejected message of a batch.
type Refused struct {
	// Message is the position of the message in the batch, from 1: the value of [Batch.Messages] after the message was
	// added.
	Message int
	Err     error
}

// Check makes the kernel validate a batch without a commit, and returns the rejected messages. The kernel continues
// after a rejected message. So the result may include messages that fail only because an earlier message failed.
//
// The batch is sent without its end message, as by "nft --check". So the kernel aborts the batch: it changes nothing
// and announces nothing.
func (c *Conn) Check(b *Batch) ([]Refused, error) {
	if b.Err != nil {
		return nil, b.Err
	}
	ack := b.requestAck()
	first, err := c.socket.Send(b.Buf)
	if err != nil {
		return nil, fmt.Errorf("send batch of %d bytes: %w", len(b.Buf), err)
	}
	var list []Refused
	answered := false
	for m, err := range c.socket.Receive(false) {
		if err != nil {
			return nil, fmt.Errorf("read replies to a batch that is only tried: %w", err)
		}
		answered = answered || m.Ends() && m.Seq == first+ack
		if m.Errno() != 0 {
			list = append(list, Refused{int(m.Seq - first), b.refusal(m)})
		}
	}
	if !answered {
		return nil, errors.New("read replies to a batch that is only tried: no acknowledgement")
	}
	return list, nil
}

// Messages returns the current number of messages in the batch.
func (b *Batch) Messages() int {
	b.closeElements()
	return b.ops
}

// AddDormantTable creates a table whose chains see no packets.
func (b *Batch) AddDormantTable(family inet.Family, name string) {
	b.addTable(&Table{Family: family, Name: name}, dormant, 0)
}

// AddOwnedTable creates a table that the kernel deletes when the socket of the connection is closed.
func (b *Batch) AddOwnedTable(t *Table) {
	const owner = 2 // NFT_TABLE_F_OWNER
	b.addTable(t, owner, unix.NLM_F_EXCL)
}
