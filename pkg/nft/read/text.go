package read

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Text returns a rule in nft's language, without its comment. It prints an unknown expression as its name between
// question marks. sets are the sets of the rule's table, from which Text knows the number of registers of a key.
func Text(family inet.Family, exprs []Expr, sets map[string]*nft.Set) string {
	w := writer{family: family, sets: sets}
	for _, e := range exprs {
		w.expression(e)
	}
	return strings.Join(w.words, " ")
}

// writer tracks the content of registers as text.
type writer struct {
	family inet.Family
	sets   map[string]*nft.Set
	held   [Registers / 4]*held
	words  []string
}

// held is the content of a register.
type held struct {
	text string
	// print formats a value that is compared with the content or masks it; nil for hexadecimal.
	print func([]byte) string
	// bits are those that a rule sets in the content.
	bits []byte
	// constant is the value itself if a rule sets it.
	constant []byte
	// flag is the condition that a bit is set, as nft writes it for ct, such as "ct status dnat"; "" if no mask was
	// applied.
	flag string
}

func (h *held) value(b []byte) string {
	if h.print == nil {
		return fmt.Sprintf("0x%x", b)
	}
	return h.print(b)
}

func (w *writer) say(format string, args ...any) {
	w.words = append(w.words, fmt.Sprintf(format, args...))
}

func (w *writer) hold(reg uint32, h *held) {
	if at, ok := register(reg); ok {
		w.held[at] = h
	}
}

// get returns the content of a register, or a question mark if the content is unknown.
func (w *writer) get(reg uint32) *held {
	at, ok := register(reg)
	if !ok {
		at = len(w.held)
	}
	return w.at(at)
}

func (w *writer) at(word int) *held {
	if word < len(w.held) && w.held[word] != nil {
		return w.held[word]
	}
	return &held{text: "?"}
}

// key returns the text of the fields that are looked up in a set.
func (w *writer) key(reg uint32, set string) string {
	at, ok := register(reg)
	if !ok {
		return "?"
	}
	fields := 1
	var s *nft.Set
	if s = w.sets[set]; s != nil {
		fields = len(s.Key)
	}
	var parts []string
	for i := range fields {
		parts = append(parts, w.at(at).text)
		if s != nil {
			at += s.Key[i].Registers()
		}
	}
	return strings.Join(parts, " . ")
}

func (w *writer) expression(given Expr) {
	switch e := given.Any.(type) {
	case *expr.Payload:
		w.payload(e)
	case *expr.Meta:
		w.meta(e)
	case *expr.Ct:
		w.ct(e)
	case *expr.Fib:
		w.fib(e)
	case *expr.Numgen:
		text := fmt.Sprintf("numgen %s mod %d", numgenTypes[e.Type&1], e.Modulus)
		if e.Offset > 0 {
			text += fmt.Sprintf(" offset %d", e.Offset)
		}
		w.hold(e.Register, &held{text: text})
	case *expr.Hash:
		w.hash(e)
	case *expr.Bitwise:
		w.bitwise(e)
	case *expr.Byteorder:
		w.hold(e.DestRegister, w.get(e.SourceRegister)) // the text does not depend on the byte order
	case *expr.Immediate:
		w.hold(e.Register, &held{text: fmt.Sprintf("0x%x", e.Data), constant: e.Data})
	case *expr.Cmp:
		w.compare(e)
	case *expr.Range:
		w.between(e)
	case *expr.Lookup:
		w.lookup(e)
	case *expr.Dup:
		w.say("dup to %s", w.get(e.RegAddr).text)
	case *expr.Dynset:
		w.dynset(e)
	case *expr.NAT:
		w.nat(e)
	case *expr.Masq:
		w.say("masquerade")
		if e.FullyRandom {
			w.say("fully-random")
		}
	case *expr.Counter:
		w.say("counter")
	case *expr.Objref:
		w.say("%s", cmp.Or(nft.TimeoutsText(e), "?objref?"))
	case *expr.Reject:
		w.reject(e)
	case *expr.Verdict:
		w.words = append(w.words, VerdictText(int32(e.Kind), e.Chain))
	default:
		w.say("?%T?", e)
	case nil:
		w.say("?%s?", given.Name)
	}
}

// hash formats a hash of fields of a concatenation, each of which takes whole registers.
func (w *writer) hash(e *expr.Hash) {
	if e.Type != expr.HashTypeJenkins {
		w.hold(e.DestRegister, &held{text: fmt.Sprintf("symhash mod %d", e.Modulus)})
		return
	}
	var parts []string
	at, _ := register(e.SourceRegister)
	for end := at + int(e.Length+3)/4; at < end; at++ {
		if at < len(w.held) && w.held[at] != nil && w.held[at].text != "" {
			parts = append(parts, w.held[at].text)
		}
	}
	text := fmt.Sprintf("jhash %s mod %d seed 0x%x", strings.Join(parts, " . "), e.Modulus, e.Seed)
	w.hold(e.DestRegister, &held{text: text})
}

var numgenTypes = [...]string{"inc", "random"}

// ValueText returns the data or verdict of an element in nft's language; "" if the set is no map.
func ValueText(f *nft.Found) string {
	switch {
	case f.Set.Verdict:
		return VerdictText(f.Verdict, f.Chain)
	case f.Set.IsMap():
		return f.Data.Text(f.Set.Data)
	}
	return ""
}

// VerdictText returns a verdict in nft's language.
func VerdictText(code int32, chain string) string {
	switch code {
	case unix.NFT_GOTO:
		return "goto " + chain
	case unix.NFT_JUMP:
		return "jump " + chain
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_CONTINUE:
		return "continue"
	case nfDrop:
		return "drop"
	case nfAccept:
		return "accept"
	}
	return fmt.Sprintf("verdict %d", code)
}

// NF_DROP and NF_ACCEPT, which golang.org/x/sys/unix lacks.
const nfDrop, nfAccept = 0, 1

func (w *writer) payload(e *expr.Payload) {
	if e.OperationType == expr.PayloadWrite {
		w.write(e)
		return
	}
	known := []nft.Field{nft.SrcAddr(w.family), nft.DstAddr(w.family), nft.SrcPort(), nft.DstPort()}
	for i, f := range known {
		load, ok := f.Load(e.DestRegister).(*expr.Payload)
		if !ok || load.Base != e.Base || load.Offset != e.Offset {
			continue
		}
		switch isAddr := i < 2; {
		case load.Len == e.Len:
			w.hold(e.DestRegister, &held{text: f.Name(), print: f.Print})
			return
		case isAddr && load.Len > e.Len:
			w.hold(e.DestRegister, &held{text: f.Name(), print: func(b []byte) string {
				return fmt.Sprintf("%s/%d", f.Print(append(bytes.Clone(b), make([]byte, f.Len()-len(b))...)), len(b)*8)
			}})
			return
		}
	}
	base := [...]string{"ll", "nh", "th", "ih"}[e.Base&3]
	w.hold(e.DestRegister, &held{text: fmt.Sprintf("@%s,%d,%d", base, e.Offset*8, e.Len*8)})
}

// write formats a rule that sets the TTL or the hop limit. The first byte of the value is the TTL.
func (w *writer) write(e *expr.Payload) {
	from, field := w.get(e.SourceRegister), [...]string{"ip ttl", "ip6 hoplimit"}[w.family]
	value := cmp.Or(string(from.constant), string(from.bits))
	if len(value) == 0 || e.Base != expr.PayloadBaseNetworkHeader || e.Offset != [...]uint32{8, 7}[w.family] {
		w.say("?payload set?")
		return
	}
	w.say("%s set %d", field, value[0])
}

func (w *writer) meta(e *expr.Meta) {
	f := metaOf(e.Key)
	if !e.SourceRegister {
		w.hold(e.Register, f)
		return
	}
	from := w.get(e.Register)
	if from.constant != nil {
		w.say("%s set %s", f.text, f.value(from.constant))
		return
	}
	w.say("%s set %s", f.text, from.text)
}

func metaOf(key expr.MetaKey) *held {
	switch key {
	case expr.MetaKeyL4PROTO:
		return &held{text: "meta l4proto", print: nft.L4Proto().Print}
	case expr.MetaKeyMARK:
		return &held{text: "meta mark", print: nft.Mark().Print}
	case expr.MetaKeyPRIORITY:
		return &held{text: "meta priority", print: printPriority}
	case expr.MetaKeyIIFNAME:
		return &held{text: "iifname", print: printInterface}
	case expr.MetaKeyOIFNAME:
		return &held{text: "oifname", print: printInterface}
	}
	return &held{text: fmt.Sprintf("meta key %d", key)}
}

// printPriority formats a priority as nft does.
func printPriority(b []byte) string {
	if len(b) == 4 && native(b) == 0 {
		return "none"
	}
	return nft.Priority().Print(b)
}

// printInterface formats an interface name, or the beginning of names with an asterisk.
func printInterface(b []byte) string {
	const ifNameSize = 16
	name := string(bytes.TrimRight(b, "\x00"))
	if len(b) < ifNameSize {
		name += "*"
	}
	return strconv.Quote(name)
}

// statusDNAT is IPS_DST_NAT.
const statusDNAT = 1 << 5

// Bits of the states of connections.
const (
	stateInvalid = 1 << 0
	stateRelated = 1 << 2
	stateNew     = 1 << 3
)

func (w *writer) ct(e *expr.Ct) {
	text := map[expr.CtKey]string{
		expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status", expr.CtKeyMARK: "ct mark",
		expr.CtKeyPROTOCOL: "ct protocol",
	}[e.Key]
	if text == "" {
		text = fmt.Sprintf("ct key %d", e.Key)
	}
	if e.SourceRegister {
		w.say("%s set %s", text, w.get(e.Register).text)
		return
	}
	h := &held{text: text}
	bits := map[expr.CtKey]map[uint32]string{
		expr.CtKeySTATUS: {statusDNAT: "dnat"},
		expr.CtKeySTATE:  {stateInvalid: "invalid", stateRelated: "related", stateNew: "new"},
	}[e.Key]
	if bits != nil {
		h.print = func(b []byte) string {
			if name, known := bits[native(b)]; known {
				return name
			}
			return fmt.Sprintf("0x%x", b)
		}
	}
	w.hold(e.Register, h)
}

func (w *writer) fib(e *expr.Fib) {
	var what []string
	for _, flag := range []struct {
		set  bool
		word string
	}{{e.FlagSADDR, "saddr"}, {e.FlagDADDR, "daddr"}, {e.FlagMARK, "mark"}, {e.FlagIIF, "iif"}, {e.FlagOIF, "oif"}} {
		if flag.set {
			what = append(what, flag.word)
		}
	}
	result := "oif"
	if e.ResultADDRTYPE {
		result = "type"
	}
	w.hold(e.Register, &held{text: "fib " + strings.Join(what, " . ") + " " + result, print: func(b []byte) string {
		v := native(b)
		switch {
		case e.FlagPRESENT && len(bytes.Trim(b, "\x00")) == 0: // four bytes before nft 1.1.7, then one
			return "missing"
		case e.FlagPRESENT:
			return "exists"
		case v == unix.RTN_LOCAL:
			return "local"
		}
		return strconv.Itoa(int(v))
	}})
}

// bitwise uses nft's separate notations to set, clear and toggle bits.
func (w *writer) bitwise(e *expr.Bitwise) {
	from := w.get(e.SourceRegister)
	h := &held{print: from.print}
	inverse := make([]byte, len(e.Mask))
	for i := range e.Mask {
		inverse[i] = ^e.Mask[i]
	}
	zero, ones := bytes.Trim(e.Xor, "\x00"), bytes.Trim(inverse, "\x00")
	switch {
	case len(e.Mask) == 0 || len(e.Mask) != len(e.Xor):
		h.text = from.text + " ?shifted?"
	case len(zero) == 0:
		h.text = from.text + " & " + from.value(e.Mask)
		h.flag = from.text + " " + from.value(e.Mask)
	case len(ones) == 0:
		h.text = from.text + " ^ " + from.value(e.Xor)
	case bytes.Equal(inverse, e.Xor):
		h.text = from.text + " | " + from.value(e.Xor)
	default:
		h.text = from.text + " & " + from.value(e.Mask) + " ^ " + from.value(e.Xor)
		h.bits = e.Xor
	}
	w.hold(e.DestRegister, h)
}

func (w *writer) compare(e *expr.Cmp) {
	from := w.get(e.Register)
	operator := map[expr.CmpOp]string{
		expr.CmpOpEq: "", expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ", expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ",
		expr.CmpOpGte: ">= ",
	}[e.Op]
	zero := len(bytes.Trim(e.Data, "\x00")) == 0
	switch {
	case strings.HasPrefix(from.flag, "ct ") && zero && e.Op == expr.CmpOpNeq:
		w.words = append(w.words, from.flag)
		return
	case from.flag != "" && operator == "":
		operator = "== "
	}
	w.words = append(w.words, from.text+" "+operator+from.value(e.Data))
}

// between formats the expression range. Older versions of nft use this expression only after !=, and two comparisons
// for other ranges.
func (w *writer) between(e *expr.Range) {
	from, operator := w.get(e.Register), ""
	if e.Op == expr.CmpOpNeq {
		operator = "!= "
	}
	w.say("%s %s%s-%s", from.text, operator, from.value(e.FromData), from.value(e.ToData))
}

func (w *writer) lookup(e *expr.Lookup) {
	key := w.key(e.SourceRegister, e.SetName)
	switch {
	case !e.IsDestRegSet && e.Invert:
		w.say("%s != @%s", key, e.SetName)
	case !e.IsDestRegSet && w.get(e.SourceRegister).flag != "":
		w.say("%s == @%s", key, e.SetName)
	case !e.IsDestRegSet:
		w.say("%s @%s", key, e.SetName)
	case e.DestRegister == unix.NFT_REG_VERDICT:
		w.say("%s vmap @%s", key, e.SetName)
	default:
		w.hold(e.DestRegister, &held{text: key + " map @" + e.SetName})
	}
}

func (w *writer) dynset(e *expr.Dynset) {
	operation := [...]string{"add", "update", "delete"}[min(e.Operation, 2)]
	timeout := ""
	if e.Timeout > 0 {
		timeout = fmt.Sprintf(" timeout %ds", int(e.Timeout.Seconds()))
	}
	if e.Timeout%time.Second > 0 {
		timeout = fmt.Sprintf(" timeout %dms", e.Timeout.Milliseconds())
	}
	data := ""
	if e.SrcRegData != 0 {
		data = " : " + w.get(e.SrcRegData).text
	}
	w.say("%s @%s { %s%s%s }", operation, e.SetName, w.key(e.SrcRegKey, e.SetName), timeout, data)
}

func (w *writer) nat(e *expr.NAT) {
	kind := "snat"
	if e.Type == expr.NATTypeDestNAT {
		kind = "dnat"
	}
	to := w.get(e.RegAddrMin)
	if to.constant == nil {
		w.say("%s %s to %s", kind, w.family.Keyword(), to.text)
		return
	}
	addr, _ := netip.AddrFromSlice(to.constant)
	target := addr.String()
	if port := w.get(e.RegProtoMin); e.RegProtoMin != 0 && len(port.constant) >= 2 {
		target = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port.constant)).String()
	}
	w.say("%s to %s", kind, target)
}

func (w *writer) reject(e *expr.Reject) {
	portUnreachable := uint8(3)
	if w.family == inet.IPv6 {
		portUnreachable = 4
	}
	switch {
	case e.Type == unix.NFT_REJECT_TCP_RST:
		w.say("reject with tcp reset")
	case e.Code == portUnreachable:
		w.say("reject")
	default:
		w.say("reject with %s code %d", [...]string{"icmp", "icmpv6"}[w.family], e.Code)
	}
}

// Declare returns a table with elements in nft's language, as input for nft -f. The elements are sorted.
func Declare(t *nft.Table, elements map[string][]nft.Element) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", t.Family.Keyword(), t.Name)
	comment := func(text string) {
		if text != "" {
			fmt.Fprintf(&b, "\t\tcomment %q\n", nft.CutComment(text))
		}
	}
	if t.Comment != "" {
		fmt.Fprintf(&b, "\tcomment %q\n", t.Comment)
	}
	sets := map[string]*nft.Set{}
	for _, s := range t.Sets {
		sets[s.Name] = s
		fmt.Fprintf(&b, "\n\t%s {\n", s.Head())
		for _, line := range properties(s) {
			fmt.Fprintf(&b, "\t\t%s\n", line)
		}
		comment(s.Comment)
		if list := List(s, elements[s.Name]); len(list) > 0 {
			fmt.Fprintf(&b, "\t\telements = {\n\t\t\t%s\n\t\t}\n", strings.Join(list, ",\n\t\t\t"))
		}
		b.WriteString("\t}\n")
	}
	for _, c := range t.Chains {
		if lines := c.Timeouts.Lines(t.Family); lines != nil {
			fmt.Fprintf(&b, "\n\tct timeout %s {\n\t\t%s\n\t}\n", c.Name, strings.Join(lines, "\n\t\t"))
		}
		fmt.Fprintf(&b, "\n\tchain %s {\n", c.Name)
		comment(c.Comment)
		if c.IsBase() {
			fmt.Fprintf(&b, "\t\t%s\n", c.Info().HookText())
		}
		for i := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", RuleText(t.Family, &c.Rules[i], sets))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// RuleText returns a planned rule in nft's language, with its comment.
func RuleText(family inet.Family, r *nft.Rule, sets map[string]*nft.Set) string {
	return ruleLine(Text(family, Planned(r), sets), r.Comment)
}

// ruleLine appends a comment to the text of a rule.
func ruleLine(text, comment string) string {
	if comment == "" {
		return text
	}
	return text + fmt.Sprintf(" comment %q", nft.CutComment(comment))
}

// RuleText returns a rule of the table in nft's language, with its comment.
func (t *Table) RuleText(r *Rule) string {
	return ruleLine(Text(t.Family, r.Exprs, t.Sets), r.Comment)
}

// properties returns the lines with which nft declares a set.
func properties(s *nft.Set) []string {
	typeof := "typeof " + fieldNames(s.Key)
	switch {
	case s.Verdict:
		typeof += " : verdict"
	case s.IsMap():
		typeof += " : " + fieldNames(s.Data)
	}
	lines := []string{typeof}
	if s.Size > 0 {
		lines = append(lines, fmt.Sprintf("size %d", s.Size))
	}
	var flags []string
	if s.Interval {
		flags = append(flags, "interval")
	}
	if s.Dynamic {
		flags = append(flags, "dynamic")
	}
	if s.Timeouts || s.Timeout > 0 {
		flags = append(flags, "timeout")
	}
	if len(flags) > 0 {
		lines = append(lines, "flags "+strings.Join(flags, ","))
	}
	if s.Timeout > 0 {
		lines = append(lines, fmt.Sprintf("timeout %ds", int(s.Timeout.Seconds())))
	}
	switch {
	case s.MaxConnections > 0:
		lines = append(lines, fmt.Sprintf("ct count %d", s.MaxConnections)+counterText(s))
	case s.Counter:
		lines = append(lines, "counter")
	}
	return lines
}

// counterText is the text of the counter after a connection limit: nft does not add it to an element that has a
// limit.
func counterText(s *nft.Set) string {
	if s.Counter {
		return " counter"
	}
	return ""
}

func fieldNames(fields []nft.Field) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Name())
	}
	return strings.Join(names, " . ")
}

// List returns elements as input for nft: sorted, without duplicates, with complete ranges.
func List(s *nft.Set, elements []nft.Element) []string {
	if s.Interval && len(s.Key) == 1 {
		return ranges(s, elements)
	}
	list := make([]string, 0, len(elements))
	for i := range elements {
		list = append(list, elementText(&elements[i]))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func elementText(e *nft.Element) string {
	s := e.Key.Text(e.Set.Key)
	if e.KeyEnd != (nft.Value{}) {
		s = printRanges(e.Set.Key, &e.Key, &e.KeyEnd)
	}
	if e.MaxConnections > 0 {
		s += " " + fmt.Sprintf("ct count %d", e.MaxConnections) + counterText(e.Set)
	}
	if e.Comment != "" {
		s += fmt.Sprintf(" comment %q", nft.CutComment(e.Comment))
	}
	return s + e.DataText()
}

// printRanges formats a key with ranges in some fields.
func printRanges(fields []nft.Field, from, to *nft.Value) string {
	a, b := from.Bytes(), to.Bytes()
	var parts []string
	for _, f := range fields {
		if len(a) < f.Len() || len(b) < f.Len() {
			return strings.Join(append(parts, "?"), " . ")
		}
		part := f.Print(a[:f.Len()])
		if !bytes.Equal(a[:f.Len()], b[:f.Len()]) {
			part = rangeText(f, a[:f.Len()], b[:f.Len()])
		}
		parts = append(parts, part)
		a, b = a[min(len(a), f.Registers()*4):], b[min(len(b), f.Registers()*4):]
	}
	return strings.Join(parts, " . ")
}

// rangeText formats a range of addresses: as a prefix, if possible.
func rangeText(f nft.Field, from, to []byte) string {
	for bits := range len(from) * 8 {
		if prefixed(from, to, bits) {
			return fmt.Sprintf("%s/%d", f.Print(from), bits)
		}
	}
	return f.Print(from) + "-" + f.Print(to)
}

// prefixed reports whether two values are the first and the last value of a prefix with a given length.
func prefixed(from, to []byte, bits int) bool {
	for i := range len(from) * 8 {
		a, b := from[i/8]>>(7-i%8)&1, to[i/8]>>(7-i%8)&1
		if i < bits && a != b || i >= bits && (a != 0 || b != 1) {
			return false
		}
	}
	return true
}

// ranges formats the ranges of a set with one field. An element has the first key of a range, and the next one the
// first key after the range.
func ranges(s *nft.Set, elements []nft.Element) []string {
	sorted := slices.Clone(elements)
	slices.SortFunc(sorted, func(a, b nft.Element) int {
		switch c := bytes.Compare(a.Key.Bytes(), b.Key.Bytes()); {
		case c != 0 || a.IntervalEnd == b.IntervalEnd:
			return c
		case a.IntervalEnd: // the end of one range is the start of the next
			return -1
		}
		return 1
	})
	f := s.Key[0]
	list := []string{}
	for i, e := range sorted {
		if e.IntervalEnd {
			continue
		}
		last := bytes.Repeat([]byte{0xff}, f.Len())
		if i+1 < len(sorted) {
			last = before(sorted[i+1].Key.Bytes())
		}
		text := f.Print(e.Key.Bytes())
		if !bytes.Equal(e.Key.Bytes(), last) {
			text = rangeText(f, e.Key.Bytes(), last)
		}
		list = append(list, text)
	}
	return list
}

// before returns a number minus one.
func before(b []byte) []byte {
	b = bytes.Clone(b)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return b
}
