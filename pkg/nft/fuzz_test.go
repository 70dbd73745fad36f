package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// answer returns a message that the kernel might send: with attributes after its nfgenmsg.
func answer(typ, flags uint16, attributes ...[]byte) []byte {
	body := append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, bytes.Join(attributes, nil)...)
	return frame(typ, flags, body)
}

func frame(typ, flags uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, 1)
	b = append(append(b, 0, 0, 0, 0), body...)
	for len(b)&3 != 0 {
		b = append(b, 0)
	}
	return b
}

func of(msg uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | msg }

// everything returns a batch with one message of each kind, in the form of the kernel's listing.
func everything() []byte {
	b := NewBatch(0)
	t := &Table{Family: inet.IPv4, Name: "t", Comment: "a table"}
	c := &Chain{Name: "c", Type: "nat", Hook: 1, Priority: -100, Comment: "a chain", Rules: []Rule{
		{Comment: "a rule", Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "d"}}},
	}}
	c.Timeouts = Timeouts{Protocol: inet.UDP, Unreplied: time.Second, Replied: time.Minute}
	b.AddTable(t)
	b.AddChain(t, c)
	b.AddRules(t, c)
	for _, s := range sets() {
		b.AddSet(s)
		b.AddElement(&Element{Set: s, Key: Value{}.Uint32(7), Data: Value{}.Uint32(1), Chain: "c", Comment: "an element"})
	}
	finish(b)
	return b.Buf
}

func sets() []*Set {
	return []*Set{
		testMap(),
		{Family: inet.IPv4, Table: "t", Name: "dispatch", Key: []Field{Priority()}, Verdict: true},
		{Family: inet.IPv6, Table: "t", Name: "cidrs", Key: []Field{DstAddr(inet.IPv6)}, Interval: true, Size: 16},
		{Family: inet.IPv6, Table: "t", Name: "sources", Key: []Field{DstAddr(inet.IPv6), L4Proto(), DstPort(), SrcAddr(inet.IPv6)}, Interval: true},
		{Family: inet.IPv4, Table: "t", Name: "affinity", Key: []Field{Priority(), SrcAddr(inet.IPv4)}, Data: []Field{Priority()}, Dynamic: true, Timeouts: true, Size: 9},
		{Family: inet.IPv4, Table: "t", Name: "lease", Key: []Field{L4Proto()}, Timeout: 2 * time.Minute, Comment: "while the program runs"},
	}
}

// readAll passes an answer to every function that reads the kernel's answers, and returns the error of the listing of objects:
// [netlink.ErrTruncated] if the answer has no end.
func readAll(t testing.TB, data []byte) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	lab.Must(t, err)
	c, err := Open()
	lab.Must(t, err)
	_, err = unix.Write(pair[1], data)
	err = errors.Join(err, unix.Dup3(pair[0], c.socket.FD(), unix.O_CLOEXEC), unix.Shutdown(pair[1], unix.SHUT_WR))
	defer func() {
		lab.Must(t, errors.Join(err, c.Close(), unix.Close(pair[0]), unix.Close(pair[1])))
	}()
	list := sets()
	for m := range netlink.Messages(data) {
		m.Explanation()
		gone := Batch{}
		for _, s := range list {
			gone.echoes = append(gone.echoes, echo{set: s})
		}
		gone.reported(m)
	}
	_, failed := c.list(unix.NFT_MSG_GETSET, inet.IPv4.Number(), nil, func(b []byte) error {
		var c Commit
		parseCommit(b, &c)
		parseSet(b)
		parseChain(b)
		parseRule(b)
		parseObject(b)
		commentOf(b)
		Verdict(b)
		for _, s := range list {
			_ = found(s, func(f *Found) bool {
				_ = f.String()
				f.Data.AsEndpoint(s.Family)
				return true
			})(b)
			var f Found
			err := f.parse(s, b)
			_ = f.String()
			if err != nil && len(f.Key.Bytes()) > maxValue {
				return err
			}
		}
		return nil
	})
	return failed
}

// No answer of the kernel causes a panic or an endless loop. No value exceeds its size. Data after the end of a list are ignored.
func FuzzAnswers(f *testing.F) {
	f.Add(everything())
	f.Add(frame(unix.NLMSG_ERROR, 0, nil))
	f.Add(frame(unix.NLMSG_DONE, 0, []byte{0xff, 0xff}))
	f.Add(frame(of(unix.NFT_MSG_NEWSET), 0, []byte{1, 2, 3}))
	f.Add(answer(of(unix.NFT_MSG_NEWGEN), 0, attribute(unix.NFTA_GEN_PROC_NAME, []byte("nft\x00")), attribute(unix.NFTA_GEN_ID, []byte{0, 0, 0, 9})))
	refused := append(binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1), make([]byte, unix.NLMSG_HDRLEN)...)
	f.Add(frame(unix.NLMSG_ERROR, 0x300, append(refused, attribute(1, []byte("no such table\x00"))...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		failed := readAll(t, data)
		if errors.Is(failed, netlink.ErrTruncated) {
			return
		}
		after := readAll(t, append(bytes.Clone(data), answer(of(unix.NFT_MSG_NEWSET), unix.NLM_F_DUMP_INTR)...))
		if (failed == nil) != (after == nil) {
			t.Errorf("the list ended with %v, and with %v after an additional message", failed, after)
		}
	})
}

// An element survives encoding and decoding, except for a comment that is too long for nft.
func FuzzElement(f *testing.F) {
	f.Add([]byte{10, 96, 0, 10}, uint8(6), uint16(80), uint32(3), "shop/web:http", "endpoints-of-3", true)
	f.Add(make([]byte, 16), uint8(255), uint16(0), uint32(0), "", "", false)
	f.Fuzz(func(t *testing.T, address []byte, protocol uint8, port uint16, number uint32, comment, chain string, flag bool) {
		addr, ok := netip.AddrFromSlice(address)
		if !ok || bytes.ContainsRune([]byte(comment+chain), 0) || len(chain) > 255 {
			return
		}
		family := inet.IPv4
		if addr.Is6() {
			family = inet.IPv6
		}
		m := &Set{Family: family, Name: "m", Key: []Field{DstAddr(family), L4Proto(), DstPort(), Index()}, Data: []Field{DstAddr(family), DstPort()}}
		v := &Set{Family: family, Name: "v", Key: []Field{Priority()}, Verdict: true}
		c := &Set{Family: family, Name: "c", Key: []Field{DstAddr(family)}, Interval: true}
		for _, want := range []Element{
			{Set: m, Key: Value{}.Addr(addr).Proto(inet.Protocol(protocol)).Port(port).Uint32(number), Data: Endpoint(netip.AddrPortFrom(addr, port)), Comment: comment},
			{Set: v, Key: Value{}.Uint32(number), Chain: chain, Jump: flag, Comment: comment},
			{Set: c, Key: Value{}.Addr(addr), IntervalEnd: flag, Comment: comment},
			{Set: c, Key: Value{}.Addr(addr), KeyEnd: Value{}.Addr(addr)},
		} {
			var b encoder
			b.element(&want, true)
			want.Comment = want.Comment[:min(len(want.Comment), maxComment-1)]
			read := 0
			for _, value := range netlink.Attributes(b.Buf) {
				read++
				var got Found
				err := got.parse(want.Set, value)
				if err != nil || got.Element != want {
					t.Errorf("wrote %s, read %s (%v)", &want, &got, err)
				}
			}
			if read != 1 || b.Err != nil {
				t.Errorf("%s is read %d times (%v)", &want, read, b.Err)
			}
		}
	})
}

// A set is recognised after encoding and decoding, and differs from sets of another form.
func FuzzSet(f *testing.F) {
	f.Add("services", "a comment", uint32(1024), uint16(0x35), int64(120_000))
	f.Add("", "", uint32(0), uint16(0), int64(0))
	f.Fuzz(func(t *testing.T, name, comment string, size uint32, form uint16, timeout int64) {
		if bytes.ContainsRune([]byte(name+comment), 0) || len(name) > 255 || timeout < 0 || timeout > 1<<40 {
			return
		}
		s := formed(name, comment, size, form, time.Duration(timeout)*time.Millisecond)
		b := NewBatch(0)
		b.AddSet(s)
		finish(b)
		found := false
		for m := range netlink.Messages(b.Buf) {
			if m.Type != of(unix.NFT_MSG_NEWSET) {
				continue
			}
			found = true
			got, table := parseSet(m.Object())
			if !got.Is(s) || got.Size != size || table != "t" || got.Name != name {
				t.Errorf("made %+v, read %+v in table %q", s, got, table)
			}
			for bit := range 5 {
				if other := formed(name, comment, size, form^1<<bit, s.Timeout); got.Is(other) {
					t.Errorf("%+v counts as the set %+v", got, other)
				}
			}
		}
		if !found {
			t.Error("no set was made")
		}
	})
}

// formed derives a set from the bits of a number.
func formed(name, comment string, size uint32, form uint16, timeout time.Duration) *Set {
	has := func(bit int) bool { return form>>bit&1 != 0 }
	family := inet.IPv4
	if has(0) {
		family = inet.IPv6
	}
	s := &Set{Family: family, Table: "t", Name: name, Comment: comment, Size: size, Interval: has(1), Dynamic: has(2), Timeouts: has(2), Timeout: timeout}
	s.Key = []Field{DstAddr(family)}
	if has(3) {
		s.Key = append(s.Key, L4Proto(), DstPort())
	}
	switch {
	case has(4):
		s.Verdict = true
	case has(5):
		s.Data = []Field{Priority()}
	case has(6):
		s.Data = []Field{DstAddr(family), DstPort()}
	}
	return s
}

// The last message of a list may hold an error. Without this error, a partial list would count as complete.
func TestAPartialListIsNotUsed(t *testing.T) {
	for _, typ := range []uint16{unix.NLMSG_DONE, unix.NLMSG_ERROR} {
		err := readAll(t, append(everything(), frame(typ, 0, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1))...))
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("message type %d: ended with %v, want %v", typ, err, unix.ENOENT)
		}
	}
	if err := readAll(t, frame(unix.NLMSG_DONE, 0, make([]byte, 4))); err != nil {
		t.Errorf("a whole list: ended with %v", err)
	}
	if err := readAll(t, everything()); !errors.Is(err, netlink.ErrTruncated) {
		t.Errorf("a list without an end: %v, want %v", err, netlink.ErrTruncated)
	}
}

func attribute(typ uint16, value []byte) []byte {
	var e netlink.Encoder
	e.Attr(typ, value)
	return e.Buf
}
