package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Counted is an element with the value of its counter.
type Counted struct {
	Element
	Packets uint64
}

// EachElement calls f for each element of a set. f must not keep the element. EachElement takes as long as [Conn.Elements], but
// does not store the elements. It does not detect changes of the ruleset. To detect a change of this table, compare the
// generations before and after the call, and check the commits between them.
func (c *Conn) EachElement(s *Set, f func(*Element)) error {
	_, err := c.EachCounted(s, func(e *Counted) { f(&e.Element) })
	return err
}

// EachCounted does the same as [Conn.EachElement], with the counters. If the ruleset changes during the call, whole is false: some
// elements may be missing or listed twice.
func (c *Conn) EachCounted(s *Set, f func(*Counted)) (whole bool, err error) {
	torn, err := c.list(unix.NFT_MSG_GETSETELEM, s.Family.Number(), elementsOf(s), func(object []byte) error { return eachCounted(s, object, f) })
	if err != nil {
		return false, fmt.Errorf("list elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
	}
	return !torn, nil
}

func eachCounted(s *Set, object []byte, f func(*Counted)) (failed error) {
	var room Counted // one variable for all elements saves an allocation for each
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

// packetsOf returns the value of an element's counter.
func packetsOf(element []byte) uint64 {
	packets := func(v []byte) uint64 {
		if name, data := expression(v); name == counterName {
			return netlink.Uint64(netlink.Find(data, unix.NFTA_COUNTER_PACKETS))
		}
		return 0
	}
	for typ, v := range netlink.Attributes(element) {
		switch typ {
		case unix.NFTA_SET_ELEM_EXPR:
			return packets(v)
		case setElemExpressions:
			var n uint64
			for _, v := range netlink.Attributes(v) {
				n += packets(v)
			}
			return n
		}
	}
	return 0
}

// echoes are the deletions of a batch that the kernel must report with the final values of the counters. So no count is lost, and
// the program need not read the counters before the batch. A report costs about as much as the deletion of an element.
type echoes struct {
	// messages are the positions of messages that request a report; sets are the sets of their elements.
	messages []int
	sets     []*Set
	// expected is the number of elements in the reports.
	expected int
}

const (
	// maxEchoes is the largest number of reports in one batch. Until the end of the commit, each report takes 7.7 KiB of kernel
	// memory that is not charged to any control group (an skb of NLMSG_GOODSIZE: nf_tables_setelem_notify).
	maxEchoes = 5000
	// echoBytes is the size of a report in the socket's buffer, into which the kernel packs the reports.
	echoBytes = 512
)

func (e *echoes) add(s *Set, message, n int) {
	e.messages = append(e.messages, message)
	e.sets = append(e.sets, s)
	e.expected += n
}

// echo requests reports of a message's deletions.
func (b *Batch) echo(message int, s *Set, n int) {
	if s.Counter && b.Report {
		netlink.AddFlags(b.buf, message, unix.NLM_F_ECHO)
		b.echoes.add(s, message, n)
	}
}

// Reports reports whether the batch requests the counters of deleted elements.
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

// TooMany reports whether the batch requests more reports than the limit. [Conn.Commit] then cancels all requests.
func (b *Batch) TooMany() bool {
	n := b.echoes.expected
	for _, l := range b.open {
		if l.set.Counter && b.Report && b.openKind == deletes {
			n += l.elements
		}
	}
	return n > maxEchoes
}

// Gone returns the deleted elements whose counters were not 0, after the commit of a batch with Report.
func (b *Batch) Gone() []Counted { return b.gone }

// silence cancels the requests for reports.
func (b *Batch) silence() {
	for _, at := range b.echoes.messages {
		flags := binary.NativeEndian.Uint16(b.buf[at+6:])
		binary.NativeEndian.PutUint16(b.buf[at+6:], flags&^unix.NLM_F_ECHO)
	}
	b.echoes = echoes{}
}

// awaitEchoes reserves space in the socket for the requested reports. If this fails, or the reports are too many, it cancels the
// requests: if reports filled the socket's buffer, the acknowledgement would be lost.
func (c *Conn) awaitEchoes(b *Batch) {
	switch n := b.echoes.expected; {
	case n == 0:
	case n > maxEchoes, c.socket.GrowReceiveBuffer(n*echoBytes) != nil:
		b.silence()
	}
}

// reported stores the elements of a report.
func (b *Batch) reported(m netlink.Message) {
	table := netlink.Text(netlink.Find(m.Object(), unix.NFTA_SET_ELEM_LIST_TABLE))
	name := netlink.Text(netlink.Find(m.Object(), unix.NFTA_SET_ELEM_LIST_SET))
	for _, s := range b.echoes.sets {
		if s.Name == name && s.Table == table && s.Family.Number() == m.Family() {
			// If a report is unreadable, only its counts are lost. The commit is not affected.
			_ = eachCounted(s, m.Object(), func(e *Counted) {
				if e.Packets > 0 {
					b.gone = append(b.gone, *e)
				}
			})
			return
		}
	}
}
