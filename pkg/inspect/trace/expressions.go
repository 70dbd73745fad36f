package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// expression evaluates one expression in all worlds. A draw of a random number adds worlds.
func (e *evaluator) expression(x read.Expr, worlds []*world) ([]*world, error) {
	switch x := x.Any.(type) {
	case *expr.Numgen:
		return draw(x, worlds), nil
	case *expr.Hash:
		return e.hash(x, worlds), nil
	case *expr.Lookup:
		return worlds, e.lookup(x, worlds)
	}
	for _, w := range worlds {
		if err := e.one(x, w); err != nil {
			return nil, err
		}
	}
	return worlds, nil
}

// one evaluates an expression that neither looks up elements nor draws a number.
func (e *evaluator) one(given read.Expr, w *world) error {
	switch x := given.Any.(type) {
	case *expr.Payload:
		w.payload(e.packet, x)
	case *expr.Meta:
		w.meta(e.packet, x)
	case *expr.Ct:
		w.ct(e.packet, x)
	case *expr.Fib:
		return e.fib(x, w)
	case *expr.Bitwise:
		w.bitwise(x)
	case *expr.Byteorder:
		w.byteOrder(x)
	case *expr.Immediate:
		w.store(x.Register, x.Data)
	case *expr.Cmp:
		w.compare(x)
	case *expr.Range:
		w.between(x)
	case *expr.Dynset:
		w.dynset(x)
	case *expr.NAT:
		w.nat(e.packet.family(), x)
	case *expr.Masq:
		return e.masquerade(w)
	case *expr.Dup:
		w.passedTo, _ = netip.AddrFromSlice(w.load(x.RegAddr, e.packet.family().AddrLen()))
	case *expr.Counter, *expr.Objref:
	case *expr.Reject:
		how := "with an ICMP error"
		if x.Type == unix.NFT_REJECT_TCP_RST {
			how = "with a TCP reset"
		}
		w.end(Refused, how)
	case *expr.Verdict:
		w.decides(int32(x.Kind), x.Chain)
	default:
		w.unsupported(given.Name)
	}
	return nil
}

// unsupported stops a world at an expression that this package cannot evaluate.
func (w *world) unsupported(what string) {
	w.end(Unknown, "trace cannot evaluate an expression of a rule: "+what)
}

// store puts bytes into a register, and pads the last word with zeros.
func (w *world) store(reg uint32, b []byte) {
	at, ok := read.Register(reg)
	if !ok || at+len(b) > len(w.registers) {
		return
	}
	n := copy(w.registers[at:], b)
	for i := at + n; i%4 != 0; i++ {
		w.registers[i] = 0
	}
}

func (w *world) storeWord(reg, v uint32) { w.store(reg, binary.NativeEndian.AppendUint32(nil, v)) }

// load returns n bytes of a register; nil if there are none.
func (w *world) load(reg uint32, n int) []byte {
	at, ok := read.Register(reg)
	if !ok || at+n > len(w.registers) {
		return nil
	}
	return w.registers[at : at+n]
}

func (w *world) loadWord(reg uint32) uint32 {
	b := w.load(reg, 4)
	if b == nil {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// payload loads addresses and ports. Other parts of a packet are unknown.
func (w *world) payload(p Packet, x *expr.Payload) {
	header := w.header(p, x.Base)
	if x.OperationType == expr.PayloadWrite && x.Base == expr.PayloadBaseNetworkHeader {
		return // the TTL
	}
	if x.OperationType == expr.PayloadWrite || header == nil || int(x.Offset+x.Len) > len(header) {
		w.unsupported(fmt.Sprintf("%d bytes at %d of header %d", x.Len, x.Offset, x.Base))
		return
	}
	w.store(x.DestRegister, header[x.Offset:x.Offset+x.Len])
	if x.Base == expr.PayloadBaseTransportHeader && x.Offset == 0 {
		w.portIn = x.DestRegister
	}
}

// header returns the known part of a header. An unknown source port is 0. A TCP packet has the flag SYN, and an SCTP
// packet the chunk INIT.
func (w *world) header(p Packet, base expr.PayloadBase) []byte {
	const ttl, syn, initiation = 64, 0x02, 1
	switch {
	case base == expr.PayloadBaseTransportHeader:
		b := binary.BigEndian.AppendUint16(nil, p.FromPort)
		b = binary.BigEndian.AppendUint16(b, w.to.Port())
		switch p.Protocol {
		case inet.TCP:
			b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 5<<4, syn)
		case inet.SCTP:
			b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, initiation)
		}
		return b
	case base != expr.PayloadBaseNetworkHeader:
		return nil
	}
	b := []byte{0x60, 0, 0, 0, 0, 40, byte(p.Protocol), ttl}
	if p.family() == inet.IPv4 {
		b = []byte{0x45, 0, 0, 60, 0, 0, 0x40, 0, ttl, byte(p.Protocol), 0, 0}
	}
	return append(append(b, w.source.AsSlice()...), w.to.Addr().AsSlice()...)
}

const didMark = "marks it for masquerading"

func (w *world) meta(p Packet, x *expr.Meta) {
	if x.SourceRegister {
		w.setMeta(x)
		return
	}
	switch x.Key {
	case expr.MetaKeyL4PROTO:
		w.store(x.Register, []byte{byte(p.Protocol)})
	case expr.MetaKeyNFPROTO:
		w.store(x.Register, []byte{p.family().Number()})
	case expr.MetaKeyMARK:
		w.storeWord(x.Register, w.mark)
	case expr.MetaKeyPRIORITY:
		w.storeWord(x.Register, w.priority)
	case expr.MetaKeyIIFNAME:
		w.store(x.Register, interfaceName(w.in))
	case expr.MetaKeyOIFNAME:
		w.store(x.Register, interfaceName(w.out))
	default:
		w.unsupported(fmt.Sprintf("meta key %d", x.Key))
	}
}

func (w *world) setMeta(x *expr.Meta) {
	v := w.loadWord(x.Register)
	switch x.Key {
	case expr.MetaKeyMARK:
		if v&^w.mark != 0 {
			w.note(Fact{Did: didMark})
		}
		w.mark = v
	case expr.MetaKeyPRIORITY:
		w.priority = v
	case expr.MetaKeyNFTRACE:
	default:
		w.unsupported(fmt.Sprintf("meta key %d set", x.Key))
	}
}

func interfaceName(name string) []byte {
	const ifNameSize = 16
	b := make([]byte, ifNameSize)
	copy(b[:ifNameSize-1], name)
	return b
}

func (w *world) ct(p Packet, x *expr.Ct) {
	const dnat, stateNew = 1 << 5, 8
	if x.SourceRegister {
		w.unsupported("ct set")
		return
	}
	switch x.Key {
	case expr.CtKeySTATE:
		w.storeWord(x.Register, stateNew)
	case expr.CtKeySTATUS:
		var status uint32
		if w.translated {
			status |= dnat
		}
		w.storeWord(x.Register, status)
	case expr.CtKeyPROTOCOL:
		w.store(x.Register, []byte{byte(p.Protocol)})
	default:
		w.unsupported(fmt.Sprintf("ct key %d", x.Key))
	}
}

func (e *evaluator) fib(x *expr.Fib, w *world) error {
	addr := w.to.Addr()
	if x.FlagSADDR {
		addr = w.source
	}
	if x.ResultOIF && x.FlagPRESENT && x.FlagIIF && x.FlagDADDR {
		return e.leavesByArrival(x.Register, w)
	}
	if !x.ResultADDRTYPE || x.FlagIIF || x.FlagOIF {
		w.unsupported("fib")
		return nil
	}
	typ, err := e.Routes.Type(addr)
	if err != nil {
		return err
	}
	w.storeWord(x.Register, typ)
	return nil
}

// leavesByArrival stores 1 if the packet would leave by the interface by which it arrives, otherwise 0.
func (e *evaluator) leavesByArrival(register uint32, w *world) error {
	typ, err := e.Routes.Type(w.to.Addr())
	if err != nil {
		return err
	}
	var same uint32
	if typ == unix.RTN_UNICAST {
		device, _, err := e.Routes.Out(w.to.Addr())
		if err != nil {
			return err
		}
		if device == w.in {
			same = 1
		}
	}
	w.storeWord(register, same)
	return nil
}

func (w *world) bitwise(x *expr.Bitwise) {
	from := w.load(x.SourceRegister, int(x.Len))
	if len(x.Mask) != int(x.Len) || len(x.Xor) != int(x.Len) || from == nil {
		w.unsupported("bitwise")
		return
	}
	out := make([]byte, len(from))
	for i := range from {
		out[i] = from[i]&x.Mask[i] ^ x.Xor[i]
	}
	w.store(x.DestRegister, out)
}

// byteOrder converts the byte order of each number of x.Size bytes. It does not change a shorter remainder.
func (w *world) byteOrder(x *expr.Byteorder) {
	b := bytes.Clone(w.load(x.SourceRegister, int(x.Len)))
	if x.Size != 2 && x.Size != 4 || b == nil {
		w.unsupported("byteorder")
		return
	}
	little := binary.NativeEndian.Uint16([]byte{1, 0}) == 1
	for rest, size := b, int(x.Size); little && len(rest) >= size; rest = rest[size:] {
		slices.Reverse(rest[:size])
	}
	w.store(x.DestRegister, b)
}

func (w *world) compare(x *expr.Cmp) {
	order := bytes.Compare(w.load(x.Register, len(x.Data)), x.Data)
	holds := map[expr.CmpOp]bool{
		expr.CmpOpEq: order == 0, expr.CmpOpNeq: order != 0, expr.CmpOpLt: order < 0, expr.CmpOpLte: order <= 0,
		expr.CmpOpGt: order > 0, expr.CmpOpGte: order >= 0,
	}[x.Op]
	if !holds {
		w.verdict = broken
	}
}

// between compares a register with a range, inclusive.
func (w *world) between(x *expr.Range) {
	b := w.load(x.Register, len(x.FromData))
	inside := bytes.Compare(b, x.FromData) >= 0 && bytes.Compare(b, x.ToData) <= 0
	if inside == (x.Op == expr.CmpOpNeq) {
		w.verdict = broken
	}
}

// draw returns a world for each possible number.
func draw(x *expr.Numgen, worlds []*world) []*world {
	out := make([]*world, 0, len(worlds)*int(x.Modulus))
	for _, w := range worlds {
		if x.Modulus == 0 {
			w.unsupported("numgen")
			out = append(out, w)
			continue
		}
		w.note(Fact{Drawn: x.Modulus})
		w.hashed = nil
		chances := make([]float64, x.Modulus)
		for n := range chances {
			chances[n] = 1 / float64(x.Modulus)
		}
		out = append(out, w.each(x.Register, x.Offset, chances)...)
	}
	return out
}

// each returns a world for each number whose chance is above 0, with the number in a register.
func (w *world) each(register, offset uint32, chances []float64) (out []*world) {
	w.drawnFrom = w
	for n, chance := range chances {
		if chance > 0 {
			c := w.fork()
			c.chance *= chance
			c.slot, c.slots = uint32(n), nil
			c.storeWord(register, uint32(n)+offset)
			out = append(out, c)
		}
	}
	return out
}

// hash stores the kernel's hash of registers. If the source port is in them and is unknown, hash returns a world for
// each possible result. The chance of a world is the share of ports with this result.
func (e *evaluator) hash(x *expr.Hash, worlds []*world) (out []*world) {
	for _, w := range worlds {
		key := w.load(x.SourceRegister, int(x.Length))
		if x.Type != expr.HashTypeJenkins || x.Modulus == 0 || key == nil {
			w.unsupported("hash")
			out = append(out, w)
			continue
		}
		at, _ := read.Register(x.SourceRegister)
		port, _ := read.Register(w.portIn)
		if port -= at; e.packet.FromPort != 0 || w.portIn == 0 || port < 0 || port+2 > len(key) {
			n := balance.Slot(key, x.Seed, x.Modulus) + x.Offset
			w.note(Fact{Hash: &n})
			w.storeWord(x.DestRegister, n)
			out = append(out, w)
			continue
		}
		w.note(Fact{Drawn: x.Modulus})
		chances := make([]float64, x.Modulus)
		h := w.hashed
		switch again := h != nil && h.Modulus == x.Modulus && h.Length == x.Length && h.Seed == x.Seed; {
		case again && w.slots == nil:
			chances[w.slot] = 1
		case again:
			for n, chance := range w.slots {
				chances[n] = chance / w.chance
			}
		default:
			portChances(chances, bytes.Clone(key), port, x)
		}
		w.hashed = x
		out = append(out, w.each(x.DestRegister, x.Offset, chances)...)
	}
	return out
}

// portChances adds up the share of source ports with each result of a hash.
func portChances(chances []float64, key []byte, port int, x *expr.Hash) {
	for p := 1; p < 1<<16; p++ {
		binary.BigEndian.PutUint16(key[port:], uint16(p))
		chances[balance.Slot(key, x.Seed, x.Modulus)] += 1 / float64(1<<16-1)
	}
}

// lookup looks up elements for all worlds in one request.
func (e *evaluator) lookup(x *expr.Lookup, worlds []*world) error {
	s := e.Table.Sets[x.SetName]
	if s == nil {
		return fmt.Errorf("there is no set %s", x.SetName)
	}
	index := map[nft.Value]int{}
	var keys []nft.Value
	of := make([]int, len(worlds))
	for i, w := range worlds {
		key, err := nft.ValueOf(w.load(x.SourceRegister, s.KeyLen()))
		if err != nil {
			return err
		}
		at, seen := index[key]
		if !seen {
			at = len(keys)
			index[key] = at
			keys = append(keys, key)
		}
		of[i] = at
	}
	found, err := e.Elements.Get(s, keys)
	if err != nil {
		return err
	}
	for i, w := range worlds {
		w.applyLookup(x, s, keys[of[i]], found[of[i]])
	}
	return nil
}

// applyLookup applies the result of a lookup to a world.
func (w *world) applyLookup(x *expr.Lookup, s *nft.Set, key nft.Value, f *nft.Found) {
	fact := Fact{Set: s.Name, Key: key.Text(s.Key), Missing: f == nil}
	if f != nil {
		fact.Value, fact.Comment = read.ValueText(f), f.Comment
	}
	w.note(fact)
	switch {
	case (f == nil) != x.Invert:
		w.verdict = broken
	case f == nil || !x.IsDestRegSet:
	case s.Verdict:
		w.decides(f.Verdict, f.Chain)
	default:
		data := f.Data
		w.store(x.DestRegister, data.Bytes())
	}
}

// dynset records that a rule updates a set. It does not update the set, because the update affects only later packets.
func (w *world) dynset(x *expr.Dynset) {
	const deletes = 2
	did := "counts it"
	switch {
	case !plan.Remembers(x.SetName):
	case x.Operation == deletes:
		did = "forgets the client"
	default:
		did = "remembers the client"
	}
	w.note(Fact{Set: x.SetName, Did: did})
}

func (w *world) nat(family inet.Family, x *expr.NAT) {
	addr, ok := netip.AddrFromSlice(w.load(x.RegAddrMin, family.AddrLen()))
	if x.Type != expr.NATTypeDestNAT || x.RegAddrMin == 0 || !ok {
		w.unsupported("nat of another kind")
		return
	}
	port := w.to.Port()
	if x.RegProtoMin != 0 {
		port = binary.BigEndian.Uint16(w.load(x.RegProtoMin, 2))
	}
	w.to, w.translated = netip.AddrPortFrom(addr, port), true
	w.verdict = verdict{code: accept}
}

// masquerade replaces the source with this machine's address.
func (e *evaluator) masquerade(w *world) error {
	source, err := e.Routes.Masquerade(w.to.Addr())
	if err != nil {
		return err
	}
	if w.masqueraded = true; source.IsValid() {
		w.source = source
	}
	w.verdict = verdict{code: accept}
	return nil
}
