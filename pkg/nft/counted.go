package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Counted is an element with what its counter says.
type Counted struct {
	Element
	Packets uint64
}

// EachElement calls f for the elements of a set, which f must not keep. The cost is that of [Conn.Elements], but for the memory.
// While other programs change the ruleset it goes on: whoever needs to know whether they changed this table asks for the generation
// before and after, and for what was committed in between.
func (c *Conn) EachElement(s *Set, f func(*Element)) error {
	_, err := c.EachCounted(s, func(e *Counted) { f(&e.Element) })
	return err
}

// EachCounted is [Conn.EachElement] with what the counters say. While the ruleset changes some elements may come twice or be left
// out; whole says that it has not changed.
func (c *Conn) EachCounted(s *Set, f func(*Counted)) (whole bool, err error) {
	torn, err := c.list(unix.NFT_MSG_GETSETELEM, s.Family, elementsOf(s), func(object []byte) error { return eachCounted(s, object, f) })
	if err != nil {
		return false, fmt.Errorf("list elements of %s %s: %w", s.Family, s.Name, err)
	}
	return !torn, nil
}

func eachCounted(s *Set, object []byte, f func(*Counted)) (failed error) {
	var room Counted // one for all: there may be very many
	for _, b := range elements(object) {
		var err error
		if room.Element, err = parseElement(s, b); err != nil {
			failed = err
			continue
		}
		room.Packets = packetsOf(b)
		f(&room)
	}
	return failed
}

// packetsOf finds what an element's counter says.
func packetsOf(element []byte) uint64 {
	expression := netlink.Find(element, unix.NFTA_SET_ELEM_EXPR)
	if netlink.Text(netlink.Find(expression, unix.NFTA_EXPR_NAME)) != counterName {
		return 0
	}
	return netlink.Uint64(netlink.Find(netlink.Find(expression, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS))
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
	case n > maxEchoes, c.socket.GrowReceiveBuffer(n*echoBytes) != nil:
		b.silence()
	}
}

// reported takes up a report of deletions.
func (b *Batch) reported(m netlink.Message) {
	var table, name string
	for typ, v := range netlink.Attributes(m.Object()) {
		switch typ {
		case unix.NFTA_SET_ELEM_LIST_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_SET_ELEM_LIST_SET:
			name = netlink.Text(v)
		}
	}
	for _, s := range b.echoes.sets {
		if s.Name == name && s.Table == table && s.Family == Family(m.Family()) {
			// What can't be read hasn't been counted: no reason to doubt the commit.
			_ = eachCounted(s, m.Object(), func(e *Counted) {
				if e.Packets > 0 {
					b.gone = append(b.gone, *e)
				}
			})
			return
		}
	}
}
