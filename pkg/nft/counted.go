package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Counted is an element with what its counter says.
type Counted struct {
	Element
	Packets uint64
}

// EachCounted calls f for the elements of a set, which f must not keep, with what their counters say. While the ruleset changes
// some may come twice or be left out; whole says that it has not changed. The cost is that of [Conn.Elements].
func (c *Conn) EachCounted(s *Set, f func(*Counted)) (whole bool, err error) {
	request := append(attribute(unix.NFTA_SET_ELEM_LIST_TABLE, cstring(s.Table)),
		attribute(unix.NFTA_SET_ELEM_LIST_SET, cstring(s.Name))...)
	if err := c.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Family, request); err != nil {
		return false, err
	}
	torn := false
	l := listing{seq: c.seq, torn: &torn}
	err = c.receive(func(h header, payload []byte) bool {
		l.message(h, payload, func(b []byte) error { return eachCounted(s, b, f) })
		return l.done
	})
	if err = cmp.Or(err, l.failed); err != nil {
		return false, fmt.Errorf("read counters of %s %s: %w", s.Family, s.Name, err)
	}
	return !torn, nil
}

func eachCounted(s *Set, message []byte, f func(*Counted)) (failed error) {
	var room Counted // one for all: there may be very many
	attrs(message, func(typ uint16, v []byte) {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		attrs(v, func(_ uint16, v []byte) {
			var err error
			if room.Element, err = parseElement(s, v); err != nil {
				failed = err
				return
			}
			room.Packets = packetsOf(v)
			f(&room)
		})
	})
	return failed
}

// packetsOf finds what an element's counter says.
func packetsOf(element []byte) (packets uint64) {
	counter := false
	attrs(element, func(typ uint16, v []byte) {
		if typ != unix.NFTA_SET_ELEM_EXPR {
			return
		}
		attrs(v, func(typ uint16, v []byte) {
			switch {
			case typ == unix.NFTA_EXPR_NAME:
				counter = string(bytes.TrimRight(v, "\x00")) == counterName
			case typ == unix.NFTA_EXPR_DATA && counter:
				attrs(v, func(typ uint16, v []byte) {
					if typ == unix.NFTA_COUNTER_PACKETS {
						packets = be64(v)
					}
				})
			}
		})
	})
	return packets
}

// echoes are the deletions of a batch that the kernel is asked to report, with what the elements' counters said when they went:
// nothing that is counted gets lost, and nothing has to be read before. It costs about as much as an element's deletion.
type echoes struct {
	// messages are where those are that ask for it; sets are whose elements they delete.
	messages []int
	sets     []*Set
	// expected is the number of elements that will be reported.
	expected int
}

// maxEchoes is the most that the kernel is asked to report at once. Until the end of the commit, each report takes 7.7 KiB of the
// kernel's memory that no control group is charged for (an skb of NLMSG_GOODSIZE: nf_tables_setelem_notify); in the socket's
// buffer, where the kernel has packed them, half a KiB.
const (
	maxEchoes = 5000
	echoBytes = 512
)

func (e *echoes) add(s *Set, message, n int) {
	e.messages = append(e.messages, message)
	e.sets = append(e.sets, s)
	e.expected += n
}

// echo asks for reports of a message's deletions.
func (b *Batch) echo(message int, s *Set, n int) {
	if s.Counter && b.Report {
		flags := binary.NativeEndian.Uint16(b.buf[message+6:])
		binary.NativeEndian.PutUint16(b.buf[message+6:], flags|unix.NLM_F_ECHO)
		b.echoes.add(s, message, n)
	}
}

// Reports reports whether the batch deletes elements whose counters are asked for.
func (b *Batch) Reports() bool {
	if len(b.echoes.messages) > 0 {
		return true
	}
	for _, l := range b.open {
		if l.set.Counter && b.Report && b.openKind == deletes {
			return true
		}
	}
	return false
}

// TooMany reports whether the batch asks for more reports than the kernel is to make: nothing is reported then.
func (b *Batch) TooMany() bool {
	n := b.echoes.expected
	for _, l := range b.open {
		if l.set.Counter && b.Report && b.openKind == deletes {
			n += l.elements
		}
	}
	return n > maxEchoes
}

// Gone returns the deleted elements whose counters were not 0, once a batch with Report has been committed.
func (b *Batch) Gone() []Counted { return b.gone }

// silence takes back that deletions are to be reported.
func (b *Batch) silence() {
	for _, at := range b.echoes.messages {
		flags := binary.NativeEndian.Uint16(b.buf[at+6:])
		binary.NativeEndian.PutUint16(b.buf[at+6:], flags&^unix.NLM_F_ECHO)
	}
	b.echoes = echoes{}
}

// awaitEchoes makes room for the reports that a batch asks for. Without room nothing is reported: if reports filled the socket's
// buffer, the acknowledgement would be lost.
func (c *Conn) awaitEchoes(b *Batch) {
	switch n := b.echoes.expected; {
	case n == 0:
	case n > maxEchoes, c.growReceiveBuffer(n*echoBytes) != nil:
		b.silence()
	}
}

// errSmall says that the kernel didn't give as much as was asked for.
var errSmall = errors.New("too small a receive buffer")

// growReceiveBuffer makes room for replies of n bytes beside the usual ones.
func (c *Conn) growReceiveBuffer(n int) error {
	const usual = 64 << 10
	if n += usual; n <= c.rcvbuf {
		return nil
	}
	var err error
	if c.rcvbuf == 0 {
		if c.rcvbuf, err = unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || n <= c.rcvbuf {
			return err
		}
	}
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n)
	if c.rcvbuf, err = unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil && c.rcvbuf < n {
		err = errSmall
	}
	return err
}

// reported takes up a report of deletions.
func (b *Batch) reported(payload []byte) {
	if len(payload) < nfgenLen {
		return
	}
	var table, name string
	attrs(payload[nfgenLen:], func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_SET_ELEM_LIST_TABLE:
			table = text(v)
		case unix.NFTA_SET_ELEM_LIST_SET:
			name = text(v)
		}
	})
	for _, s := range b.echoes.sets {
		if s.Name == name && s.Table == table && s.Family == Family(payload[0]) {
			// What can't be read hasn't been counted: no reason to doubt the commit.
			_ = eachCounted(s, payload[nfgenLen:], func(e *Counted) {
				if e.Packets > 0 {
					b.gone = append(b.gone, *e)
				}
			})
			return
		}
	}
}
