package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

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
