package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// echo is a message whose deletions the kernel must report with the final values of the counters. So no count is lost,
// and the program need not read the counters before the batch. A report costs about as much as the deletion of an
// element.
type echo struct {
	message int
	set     *Set
}

const (
	// MostReports is the largest number of reports in one batch. Until the end of the commit, each report takes 7.7 KiB
	// of kernel memory that is not charged to any control group (an skb of NLMSG_GOODSIZE: nf_tables_setelem_notify).
	MostReports = 5000
	// reportBytes is the size of a report in the socket's buffer, into which the kernel packs the reports.
	reportBytes = 512
)

// echo requests reports of the last message's deletions.
func (b *Batch) echo(s *Set) {
	b.AddFlags(b.last, unix.NLM_F_ECHO)
	b.echoes = append(b.echoes, echo{b.last, s})
}

// reserve reserves space in the socket for the requested reports. If this fails, or the reports are too many, it
// cancels the requests: if reports filled the socket's buffer, the acknowledgement would be lost.
func (b *Batch) reserve(grow func(bytes int) error) {
	if b.Reports <= MostReports && grow(b.Reports*reportBytes) == nil {
		return
	}
	for _, e := range b.echoes {
		flags := binary.NativeEndian.Uint16(b.Buf[e.message+6:])
		binary.NativeEndian.PutUint16(b.Buf[e.message+6:], flags&^unix.NLM_F_ECHO)
	}
	b.echoes = nil
}

// reported stores the elements of a report.
func (b *Batch) reported(m netlink.Message) {
	table := netlink.Text(netlink.Find(m.Object(), unix.NFTA_SET_ELEM_LIST_TABLE))
	name := netlink.Text(netlink.Find(m.Object(), unix.NFTA_SET_ELEM_LIST_SET))
	for _, e := range b.echoes {
		s := e.set
		if s.Name == name && s.Table == table && s.Family.Number() == m.Family() {
			// If a report is unreadable, only its counts are lost. The commit is not affected.
			_ = found(s, func(f *Found) bool {
				if f.Packets > 0 {
					b.Gone = append(b.Gone, *f)
				}
				return true
			})(m.Object())
			return
		}
	}
}
