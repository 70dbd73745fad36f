package nft

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func testMap() *Set {
	return &Set{Family: inet.IPv4, Table: "t", Name: "endpoints", Key: []Field{DstAddr(inet.IPv4), L4Proto(), DstPort(), Index()},
		Data: []Field{DstAddr(inet.IPv4), DstPort()}}
}

func testElement(s *Set, i int) *Element {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return &Element{Set: s, Key: Value{}.Addr(addr).Proto(6).Port(80).Uint32(uint32(i)), Data: Value{}.Addr(addr).Port(8080)}
}

// message is one parsed message of a batch.
type message struct {
	typ      uint16
	flags    uint16
	set      string
	elements int
}

func parse(t *testing.T, b *Batch) []message {
	t.Helper()
	var out []message
	for buf := b.Buf; len(buf) > 0; {
		n := int(binary.NativeEndian.Uint32(buf))
		if n < 20 || n > len(buf) || n%4 != 0 {
			t.Fatalf("message of %d bytes in %d", n, len(buf))
		}
		m := message{typ: binary.NativeEndian.Uint16(buf[4:]), flags: binary.NativeEndian.Uint16(buf[6:])}
		for typ, v := range netlink.Attributes(buf[20:n]) {
			switch typ {
			case unix.NFTA_SET_ELEM_LIST_SET:
				m.set = netlink.Text(v)
			case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
				for range netlink.Attributes(v) {
					m.elements++
				}
			}
		}
		out = append(out, m)
		buf = buf[n:]
	}
	return out
}

// finish ends a batch, as [Conn.Commit] does.
func finish(b *Batch) (ack uint32) {
	ack = b.requestAck()
	b.control(unix.NFNL_MSG_BATCH_END)
	return ack
}

func TestBatchSplitsLongListsAndKeepsDeletionsFirst(t *testing.T) {
	const n = 5000
	a, b := testMap(), testMap()
	b.Name = "local-endpoints"
	batch := NewBatch(0)
	for i := range n {
		batch.DeleteElement(testElement(a, i))
	}
	for i := range n {
		batch.AddElement(testElement(a, i))
		batch.AddElement(testElement(b, i))
	}
	finish(batch)
	counts := map[string]int{}
	added := false
	messages := parse(t, batch)
	for _, m := range messages {
		switch m.typ {
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM:
			added = true
			counts["add "+m.set] += m.elements
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSETELEM:
			if added {
				t.Fatal("a deletion after an addition")
			}
			counts["delete "+m.set] += m.elements
		}
	}
	for _, what := range []string{"add endpoints", "add local-endpoints", "delete endpoints"} {
		lab.Same(t, n, counts[what], "%s: elements", what)
	}
	if elements := batch.Elements; elements != 3*n {
		t.Errorf("Size() = %d elements, want %d", elements, 3*n)
	}
	if len(messages) > 30 {
		t.Errorf("%d messages for %d elements of two sets", len(messages), 3*n)
	}
}

func TestBatchAsksForOneAcknowledgementOfItsLastChange(t *testing.T) {
	batch := NewBatch(0)
	for i := range 10 {
		batch.AddElement(testElement(testMap(), i))
	}
	ack := finish(batch)
	messages := parse(t, batch)
	if first, last := messages[0].typ, messages[len(messages)-1].typ; first != unix.NFNL_MSG_BATCH_BEGIN || last != unix.NFNL_MSG_BATCH_END {
		t.Errorf("the batch begins with %d and ends with %d", first, last)
	}
	for i, m := range messages {
		if wants, should := m.flags&unix.NLM_F_ACK != 0, i == len(messages)-2; wants != should {
			t.Errorf("message %d of %d: asks for an acknowledgement is %v", i, len(messages), wants)
		}
	}
	lab.Same(t, "add elements to t endpoints", batch.describe(ack), "describe(ack)")
}

func TestCommentsAreCutToTheLimitOfNft(t *testing.T) {
	e := testElement(testMap(), 1)
	e.Comment = strings.Repeat("x", 300)
	var enc encoder
	enc.element(e, true)
	var comment string
	for _, v := range netlink.Attributes(enc.Buf) {
		for typ, v := range netlink.Attributes(v) {
			if typ == unix.NFTA_SET_ELEM_USERDATA {
				comment = commentOf(v)
			}
		}
	}
	if len(comment) != maxComment-1 {
		t.Errorf("a comment of 300 bytes became one of %d, want %d", len(comment), maxComment-1)
	}
}

func TestElementsReadBackAsTheyWereWritten(t *testing.T) {
	verdicts := &Set{Family: inet.IPv4, Table: "t", Name: "dispatch", Key: []Field{Priority()}, Verdict: true}
	sources := &Set{Family: inet.IPv4, Table: "t", Name: "sources", Key: []Field{DstAddr(inet.IPv4), SrcAddr(inet.IPv4)}, Interval: true}
	addr := netip.MustParseAddr("192.0.2.1")
	for text, e := range map[string]Element{
		"ip endpoints { 10.0.0.7 . tcp . 80 . 7 : 10.0.0.7 . 8080 }": *testElement(testMap(), 7),
		"ip dispatch { 1000:3 : goto endpoints-of-3 }":               {Set: verdicts, Key: Value{}.Uint32(0x10000003), Chain: "endpoints-of-3"},
		"ip dispatch { 5000:3 : jump pick-of-3 }":                    {Set: verdicts, Key: Value{}.Uint32(0x50000003), Chain: "pick-of-3", Jump: true},
		"ip sources { 192.0.2.1 . 192.0.2.1 - 192.0.2.1 . 192.0.2.1 }": {
			Set: sources, Key: Value{}.Addr(addr).Addr(addr), KeyEnd: Value{}.Addr(addr).Addr(addr)},
	} {
		var enc encoder
		enc.element(&e, true)
		var got Found
		var err error
		for _, v := range netlink.Attributes(enc.Buf) {
			err = got.parse(e.Set, v)
		}
		if err != nil || got.Element != e {
			t.Errorf("%s: read back as %v, %v", text, got.String(), err)
		}
		lab.Same(t, text, e.String(), "String()")
	}
}

func TestReadersSurviveGarbage(t *testing.T) {
	good := NewBatch(0)
	good.AddSet(testMap())
	good.AddElement(testElement(testMap(), 1))
	finish(good)
	for cut := range len(good.Buf) {
		for m := range netlink.Messages(good.Buf[:cut]) {
			for _, v := range netlink.Attributes(m.Payload) {
				_ = new(Found).parse(testMap(), v)
			}
			parseSet(m.Payload)
			m.Flags = 0x300
			_ = m.Explanation()
		}
	}
	for i := range good.Buf {
		bad := append([]byte(nil), good.Buf...)
		bad[i] ^= 0xff
		for m := range netlink.Messages(bad) {
			for _, v := range netlink.Attributes(m.Payload) {
				_ = new(Found).parse(testMap(), v)
			}
		}
	}
	lab.Same(t, "message 12345", good.describe(12345), "describe of an unknown message")
}
