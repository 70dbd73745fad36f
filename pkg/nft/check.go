package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Refused is one message of a batch that the kernel doesn't accept.
type Refused struct {
	// Message is what [Batch.Messages] returned after the message was added.
	Message int
	Err     error
}

// Check has the kernel look at a batch without committing it, and returns what it refuses. It goes on after the first such
// message, so that those that are refused only because they need an earlier one are returned, too. Nothing changes and nobody
// is told: without its end, a batch is only tried, which is what "nft --check" does.
func (c *Conn) Check(b *Batch) ([]Refused, error) {
	if b.err != nil {
		return nil, b.err
	}
	ack := b.askAck()
	first, err := c.socket.Send(b.buf)
	if err != nil {
		return nil, fmt.Errorf("send batch of %d bytes: %w", len(b.buf), err)
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

// Messages returns how many messages the batch has by now.
func (b *Batch) Messages() int {
	b.closeElements()
	return b.ops
}

// AddDormantTable creates a table whose chains see no packets.
func (b *Batch) AddDormantTable(family Family, name string) {
	const dormant = 1
	off := b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, family)
	b.str(unix.NFTA_TABLE_NAME, name)
	b.u32(unix.NFTA_TABLE_FLAGS, dormant)
	b.end(off)
}
