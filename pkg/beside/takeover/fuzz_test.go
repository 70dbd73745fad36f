package takeover

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// tableOf builds a table in the kernel's layout: entries with or without a comment, and a target with its data.
type tableOf struct {
	blob
}

// add appends an entry and returns its offset.
func (b *tableOf) add(comment, target string, data []byte) int {
	offset := len(b.entries)
	e := make([]byte, b.size)
	if comment != "" {
		match := make([]byte, targetHeader+256)
		binary.NativeEndian.PutUint16(match, uint16(len(match)))
		copy(match[2:], "comment")
		copy(match[targetHeader:], comment)
		e = append(e, match...)
	}
	at := len(e)
	header := make([]byte, targetHeader)
	copy(header[2:], target)
	e = append(append(e, header...), data...)
	e = append(e, make([]byte, (8-len(e)%8)%8)...)
	binary.NativeEndian.PutUint16(e[at:], uint16(len(e)-at))
	binary.NativeEndian.PutUint16(e[b.offsets:], uint16(at))
	binary.NativeEndian.PutUint16(e[b.offsets+2:], uint16(len(e)))
	b.entries = append(b.entries, e...)
	b.NumEntries++
	b.EntrySize = uint32(len(b.entries))
	return offset
}

func (b *tableOf) start(chain string) {
	b.add("", "ERROR", append([]byte(chain), make([]byte, 32-len(chain))...))
}

func (b *tableOf) verdict(comment string, v int) int {
	return b.add(comment, "", binary.NativeEndian.AppendUint32(nil, uint32(int32(v))))
}

const accepts, returns = -2, -5

// kubeProxysTable returns a table with a chain of kube-proxy, a rule that leads to it, and another program's chain.
func kubeProxysTable(l layout) blob {
	b := tableOf{blob{layout: l}}
	b.ValidHooks = 1
	jump := b.verdict("kubernetes service portals", 0)
	foreign := b.verdict("", 0)
	b.Underflow[0] = uint32(b.verdict("", accepts))
	b.start("KUBE-SERVICES")
	services := b.verdict("a service", accepts)
	b.verdict("", returns)
	b.start("FOREIGN")
	target := b.verdict("", returns)
	b.start("ERROR")
	for at, to := range map[int]int{jump: services, foreign: target} {
		e, err := b.at(at)
		if err != nil {
			panic(err)
		}
		binary.NativeEndian.PutUint32(b.entries[e.target+targetHeader:], uint32(to))
	}
	return b.blob
}

func encodeInfo(i tableInfo) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, i)
	if err != nil {
		panic(err)
	}
	return b
}

// No table causes a panic. If nothing is removed, the table stays the same byte for byte. Otherwise the rest is a
// valid table with all other objects.
func FuzzTable(f *testing.F) {
	for _, l := range []layout{layout4, layout6} {
		b := kubeProxysTable(l)
		f.Add(encodeInfo(b.tableInfo), b.entries, l == layout6)
		f.Add(encodeInfo(b.tableInfo), b.entries[:len(b.entries)-9], l == layout6)
		f.Add(encodeInfo(b.tableInfo), b.entries, l != layout6)
	}
	f.Fuzz(func(t *testing.T, info, entries []byte, six bool) {
		b := &blob{layout: layout4, entries: entries}
		if six {
			b.layout = layout6
		}
		if _, err := binary.Decode(info, binary.NativeEndian, &b.tableInfo); err != nil {
			return
		}
		c, err := b.parse("nat")
		if err != nil {
			return
		}
		if same, _, err := b.without(c, &removal{}); err == nil && !bytes.Equal(same.entries, b.entries) {
			t.Errorf("with nothing removed:\n%x\nbecomes\n%x", b.entries, same.entries)
		}
		r := c.removal()
		rest, from, err := b.without(c, &r)
		if err != nil {
			return
		}
		if len(from) != int(rest.NumEntries) || len(rest.entries) != int(rest.EntrySize) {
			t.Errorf("%d entries of %d bytes, declared as %d of %d", len(from), len(rest.entries), rest.NumEntries, rest.EntrySize)
		}
		checkRest(t, c, &r, rest)
	})
}

// checkRest compares the remaining chains and rules with the expected ones.
func checkRest(t *testing.T, before *content, r *removal, rest *blob) {
	t.Helper()
	after, err := rest.parse("nat")
	if err != nil {
		t.Fatalf("the rest is not a valid table: %v", err)
	}
	for _, c := range after.chains {
		if r.chains[c.name] {
			t.Errorf("chain %q is left", c.name)
		}
	}
	stay := 0
	for i, rule := range before.rules {
		if !r.chains[rule.chain] && !slices.Contains(r.jumps, i) {
			stay++
		}
	}
	lab.Same(t, stay, len(after.rules), "rules are left")
}

// padded returns the kernel's message about a virtual server. The kernel accepts short addresses, but returns them with
// padding to the longer length.
func padded(s server) []byte {
	a := nl.NewRtAttr(ipvsService|unix.NLA_F_NESTED, nil)
	a.AddRtAttr(svcAF, nl.Uint16Attr(uint16(inet.FamilyOf(s.addr).Number())))
	a.AddRtAttr(svcProtocol, nl.Uint16Attr(s.protocol))
	a.AddRtAttr(svcAddr, append(s.addr.AsSlice(), make([]byte, 16)...)[:16])
	a.AddRtAttr(svcPort, binary.BigEndian.AppendUint16(nil, s.port))
	return append(make([]byte, nl.SizeofGenlmsg), a.Serialize()...)
}

// No answer of ipvs or ipset causes a panic. A decoded virtual server is encoded to the same attributes.
func FuzzAnswers(f *testing.F) {
	genl := make([]byte, nl.SizeofGenlmsg)
	for _, s := range []server{
		{netip.MustParseAddr("10.96.0.1"), unix.IPPROTO_TCP, 443}, {netip.MustParseAddr("fd00::1"), unix.IPPROTO_UDP, 53},
	} {
		f.Add(append(genl, s.attribute().Serialize()...))
		f.Add(padded(s))
	}
	f.Add(append(genl, nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated("KUBE-CLUSTER-IP")).Serialize()...))
	f.Add([]byte{0, 0, 0, 0, 2, 0, 1, 0})
	f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		ipsetName(data)
		want, ok := serverOf(object(data, ipvsService))
		if !ok {
			return
		}
		if got, ok := serverOf(object(padded(want), ipvsService)); !ok || got != want {
			t.Errorf("read %v, named %v", want, got)
		}
	})
}
