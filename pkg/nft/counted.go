package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

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
func (b *Batch) Gone() []Found { return b.gone }

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
			_ = found(s, func(f *Found) bool {
				if f.Packets > 0 {
					b.gone = append(b.gone, *f)
				}
				return true
			})(m.Object())
			return
		}
	}
}
