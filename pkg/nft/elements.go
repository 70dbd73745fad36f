package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Found is an element in the kernel.
type Found struct {
	Element
	// Verdict is the verdict code of an element of a verdict map.
	Verdict int32
	// Expires is the remaining time of the element; 0 if it has no timeout.
	Expires time.Duration
	// Packets is the value of the element's counter; 0 if it has none.
	Packets uint64
}

// Elements returns the elements of a set. The kernel's work grows with the square of their number: use it for small
// sets, or where latency does not matter. While the kernel resizes a set without a declared size, an element may be
// listed twice. If the ruleset changes meanwhile, Elements starts again.
func (c *Conn) Elements(s *Set) ([]Element, error) {
	parse := func(object []byte, add func(Element)) error {
		return found(s, func(f *Found) bool {
			add(f.Element)
			return true
		})(object)
	}
	list, err := dump(c, unix.NFT_MSG_GETSETELEM, s.Family.Number(), elementsOf(s), parse)
	if err != nil {
		return nil, listError(s, err)
	}
	return list, nil
}

// errEnough ends a reading before its end.
var errEnough = errors.New("enough")

// Each calls f for elements of a set until f returns false. f must not keep the element, but may sleep. Each takes as
// long as [Conn.Elements], but does not store the elements. The first n elements of a large set take the kernel much
// less time than all: its work grows with the square of n. The order is that of the hash table, so the first elements
// are a random sample.
//
// If the ruleset changes during the call, whole is false: some elements may be missing or listed twice. To detect a
// change of this table, compare the generations before and after the call, and check the commits between them.
func (c *Conn) Each(s *Set, f func(*Found) (more bool)) (whole bool, err error) {
	torn, err := c.list(unix.NFT_MSG_GETSETELEM, s.Family.Number(), elementsOf(s), found(s, f))
	if err != nil && err != errEnough { //nolint:errorlint // never wrapped
		return false, listError(s, err)
	}
	return err == nil && !torn, nil
}

func listError(s *Set, err error) error {
	return fmt.Errorf("list elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
}

// found returns a function that calls f for the elements of a set in a message, until f returns false.
func found(s *Set, f func(*Found) (more bool)) func(object []byte) error {
	var room Found // one variable for all elements saves an allocation for each
	return func(object []byte) error {
		for _, b := range elements(object) {
			if err := room.parse(s, b); err != nil {
				return err
			}
			if !f(&room) {
				return errEnough
			}
		}
		return nil
	}
}

// elementsOf returns the attributes of a request for all elements of a set.
func elementsOf(s *Set) []byte {
	var b encoder
	b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table)
	b.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	return b.Buf
}

// elements yields the elements in a message.
func elements(object []byte) iter.Seq2[uint16, []byte] {
	return netlink.Attributes(netlink.Find(object, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
}

// parse replaces f by the element in a message.
func (f *Found) parse(s *Set, b []byte) (failed error) {
	*f = Found{Element: Element{Set: s}}
	value := func(nested []byte) (v Value) {
		for typ, b := range netlink.Attributes(nested) {
			if typ == unix.NFTA_DATA_VALUE {
				var err error
				if v, err = ValueOf(b); err != nil {
					failed = fmt.Errorf("read element of %s: %w", s.Name, err)
				}
			}
		}
		return v
	}
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			f.Key = value(v)
		case setElemKeyEnd:
			f.KeyEnd = value(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			f.IntervalEnd = netlink.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_DATA:
			f.Data = value(v)
			f.Chain, f.Verdict = Verdict(v)
			f.Jump = f.Verdict == unix.NFT_JUMP
		case unix.NFTA_SET_ELEM_USERDATA:
			f.Comment = commentOf(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			f.Expires = time.Duration(netlink.Uint64(v)) * time.Millisecond
		case unix.NFTA_SET_ELEM_EXPR:
			f.expression(v)
		case setElemExpressions:
			for _, v := range netlink.Attributes(v) {
				f.expression(v)
			}
		}
	}
	return failed
}

// expression reads the connection limit, or the value of the counter.
func (f *Found) expression(v []byte) {
	switch name, data := Expression(v); name {
	case connlimitName:
		f.MaxConnections = uint16(netlink.Uint32(netlink.Find(data, connlimitCount)))
	case counterName:
		f.Packets += netlink.Uint64(netlink.Find(data, unix.NFTA_COUNTER_PACKETS))
	}
}

// getAtOnce is the largest number of keys in one request: the answers must fit in the socket's buffer.
const getAtOnce = 256

// Get looks up elements by key. The result is nil for a missing element. The kernel matches keys as it does for a
// packet.
func (c *Conn) Get(s *Set, keys []Value) ([]*Found, error) {
	found := make([]*Found, len(keys))
	for from := 0; from < len(keys); {
		n, missing, err := c.getSome(s, keys[from:min(len(keys), from+getAtOnce)], found[from:])
		if err != nil {
			return nil, fmt.Errorf("get elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
		}
		from += n
		if missing {
			from++
		}
	}
	return found, nil
}

// getSome sends one request. The kernel answers up to the first missing element.
func (c *Conn) getSome(s *Set, keys []Value, found []*Found) (n int, missing bool, err error) {
	for m, err := range c.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, s.Family.Number(), getRequest(s, keys)) {
		if err == unix.ENOENT {
			return n, true, nil
		}
		if err != nil || m.Ends() {
			return n, false, err
		}
		for _, b := range elements(m.Object()) {
			var f Found
			if err := f.parse(s, b); err != nil {
				return n, false, err
			}
			if n < len(found) {
				found[n] = &f
				n++
			}
		}
	}
	return n, false, nil
}

// Count returns the number of elements of a set, or -1 if the kernel does not report it (before 6.16).
func (c *Conn) Count(s *Set) (int, error) {
	var b encoder
	b.Text(unix.NFTA_SET_TABLE, s.Table)
	b.Text(unix.NFTA_SET_NAME, s.Name)
	m, err := c.socket.AskOne(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, s.Family.Number(), b.Buf)
	if err != nil {
		return 0, fmt.Errorf("count elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
	}
	info, _ := parseSet(m.Object())
	return info.Count, nil
}

func getRequest(s *Set, keys []Value) []byte {
	var b encoder
	b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table)
	b.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	list := b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := range keys {
		e := b.Nest(unix.NFTA_LIST_ELEM)
		b.value(unix.NFTA_SET_ELEM_KEY, &keys[i])
		if s.Interval && len(s.Key) > 1 {
			b.value(setElemKeyEnd, &keys[i])
		}
		b.Unnest(e)
	}
	b.Unnest(list)
	return b.Buf
}

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
