package nft

import (
	"cmp"
	"fmt"
	"time"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Table is a table with its sets, chains and rules, but without elements.
type Table struct {
	Family  inet.Family
	Name    string
	Sets    []*Set
	Chains  []*Chain
	Comment string
}

// Set returns the set with a name; nil if there is none.
func (t *Table) Set(name string) *Set {
	for _, s := range t.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Chain returns the chain with a name; nil if there is none.
func (t *Table) Chain(name string) *Chain {
	for _, c := range t.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Set describes a set, or a map if it has data.
type Set struct {
	Family  inet.Family
	Table   string
	Name    string
	Comment string
	// Key are the fields of the key, at most five.
	Key []Field
	// Data are the fields of the data of a map; nil for a set or a verdict map.
	Data []Field
	// Verdict makes a map with verdicts as data: see [Element.Chain].
	Verdict bool
	// Interval allows ranges: with [Element.IntervalEnd] in a key of one field, with [Element.KeyEnd] in a key of
	// several.
	Interval bool
	// Dynamic lets rules add elements, up to Size.
	Dynamic bool
	// Timeouts allows elements to have their own timeouts.
	Timeouts bool
	// Timeout is the default timeout of elements, in whole milliseconds; 0 means none.
	Timeout time.Duration
	// Size is the number of elements for which the kernel reserves memory. With a size, the kernel uses its fixed hash
	// table, into which it adds elements three times as fast. With 0, the hash table grows. A batch that exceeds Size
	// fails with ENFILE.
	Size uint32
	// Counter gives each element a counter of matching packets, which starts at 0.
	Counter bool
	// MaxConnections makes each element count its connections. If they are more than [Element.MaxConnections], a rule
	// that looks up the element does not match. The value applies to elements whose own limit is 0. The set must have
	// no size and no timeouts. With Counter, an element counts only the packets that it matches.
	MaxConnections uint16
}

// Head returns "set" or "map" with the name.
func (s *Set) Head() string {
	if s.IsMap() {
		return "map " + s.Name
	}
	return "set " + s.Name
}

// IsMap reports whether elements have data.
func (s *Set) IsMap() bool { return s.Data != nil || s.Verdict }

// KeyLen returns the length of the key in bytes.
func (s *Set) KeyLen() int { return length(s.Key) }

// flags returns the kernel's flags of the set.
func (s *Set) flags() uint32 {
	const interval, isMap, expires, eval, concat, expressions = 0x4, 0x8, 0x10, 0x20, 0x80, 0x100
	var f uint32
	if s.Interval {
		f |= interval
		if len(s.Key) > 1 {
			f |= concat
		}
	}
	if s.IsMap() {
		f |= isMap
	}
	if s.Dynamic {
		f |= eval
	}
	if s.Timeouts || s.Timeout > 0 {
		f |= expires
	}
	if s.Counter && s.MaxConnections > 0 {
		f |= expressions // the kernel wants it for more than one
	}
	return f
}

// dataType returns the kernel's type number of a map's data.
func (s *Set) dataType() uint32 {
	if s.Verdict {
		return verdictType
	}
	return typeID(s.Data)
}

func (s *Set) dataLen() int {
	if s.Verdict {
		return 16
	}
	return length(s.Data)
}

// userData returns the data that nft stores with a set, to print the elements: byte orders, typeof, comment.
func (s *Set) userData() []byte {
	const (
		keyByteOrder  = 0
		dataByteOrder = 1
		keyTypeof     = 3
		dataTypeof    = 4
		dataInterval  = 6
		comment       = 7
	)
	u := tlvU32(keyByteOrder, byteOrder(s.Key))
	if s.IsMap() {
		u = append(u, tlvU32(dataByteOrder, byteOrder(s.Data))...)
	}
	u = append(u, tlv(keyTypeof, typeofFields(s.Key))...)
	switch {
	case s.Verdict:
		u = append(u, tlv(dataTypeof, typeofExpr(etypeVerdict))...)
	case s.Data != nil:
		u = append(u, tlv(dataTypeof, typeofFields(s.Data))...)
	}
	if s.IsMap() {
		u = append(u, tlvU32(dataInterval, 0)...)
	}
	if s.Comment != "" {
		u = append(u, tlv(comment, []byte(CutComment(s.Comment)+"\x00"))...)
	}
	return u
}

// Chain is a base chain if it has a hook. Otherwise only verdicts lead to the chain.
type Chain struct {
	Name    string
	Comment string
	// Type, Hook and Priority are those of a base chain. Type is empty for other chains.
	Type     string
	Hook     uint32
	Priority int32
	// Timeouts are the object that the rules of the chain set, with the name of the chain; zero for none.
	Timeouts Timeouts
	Rules    []Rule
}

// IsBase reports whether the chain has a hook.
func (c *Chain) IsBase() bool { return c.Type != "" }

// Is reports whether the chain in the kernel has the type, hook and priority of c. It ignores the policy.
func (i *ChainInfo) Is(c *Chain) bool {
	return i.Type == c.Type && i.Hook == c.Hook && i.Priority == c.Priority
}

// Info returns the description of the chain that the kernel returns after it has added the chain.
func (c *Chain) Info() *ChainInfo {
	return &ChainInfo{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority}
}

// hookNames are nft's keywords for the hooks of the IP families.
var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// HookName returns nft's keyword for a hook of the IP families.
func HookName(hook uint32) string {
	if int(hook) < len(hookNames) {
		return hookNames[hook]
	}
	return fmt.Sprintf("hook %d", hook)
}

// HookText returns the hook of a base chain in nft's language, with its policy; "" for another chain.
func (i *ChainInfo) HookText() string {
	if i.Type == "" {
		return ""
	}
	policy := "accept"
	if i.Drops {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %d; policy %s;", i.Type, HookName(i.Hook), i.Priority, policy)
}

// kind does the same as HookText, and describes another chain.
func (i *ChainInfo) kind() string { return cmp.Or(i.HookText(), "without a hook") }

// Rule is a list of expressions with a comment, which also identifies the rule when it is read.
type Rule struct {
	Comment string
	Exprs   []expr.Any
}

// Element is one element of a set or map. It is comparable.
type Element struct {
	Set *Set
	Key Value
	// KeyEnd is the last key of a range in an interval set of several fields, else empty.
	KeyEnd Value
	// IntervalEnd marks the first key after a range in an interval set of one field.
	IntervalEnd bool
	// Data is the data of a map's element.
	Data Value
	// Chain is the target chain of a verdict map's element. With Jump, the packet returns from it.
	Chain string
	Jump  bool
	// MaxConnections is the connection limit of an element of a set with [Set.MaxConnections]; 0 for the limit of the
	// set. An element that replaces another one starts to count at 0.
	MaxConnections uint16
	// Timeout is the timeout of a new element in seconds; 0 for the default timeout of its set.
	Timeout uint16
	// Comment is a text that nft shows. [CutComment] cuts it.
	Comment string
}

// ID identifies an element among all tables: two elements with equal IDs cannot exist at once.
type ID struct {
	Set         *Set
	Key, KeyEnd Value
	IntervalEnd bool
}

// ID returns the element's identity.
func (e *Element) ID() ID {
	return ID{Set: e.Set, Key: e.Key, KeyEnd: e.KeyEnd, IntervalEnd: e.IntervalEnd}
}

// String returns the element in nft's syntax, preceded by the name of its set.
func (e *Element) String() string {
	s := e.Set.Family.Keyword() + " " + e.Set.Name + " { " + e.Key.Text(e.Set.Key)
	if e.KeyEnd != (Value{}) {
		s += " - " + e.KeyEnd.Text(e.Set.Key)
	}
	if e.IntervalEnd {
		s += " end"
	}
	if e.MaxConnections > 0 {
		s += " " + fmt.Sprintf("ct count %d", e.MaxConnections)
	}
	if e.Comment != "" {
		s += " comment " + `"` + e.Comment + `"`
	}
	return s + e.DataText() + " }"
}

// DataText returns the verdict or the data in nft's language, after a colon; "" if the set is no map.
func (e *Element) DataText() string {
	switch {
	case e.Set.Verdict && e.Jump:
		return " : jump " + e.Chain
	case e.Set.Verdict:
		return " : goto " + e.Chain
	case e.Set.IsMap():
		return " : " + e.Data.Text(e.Set.Data)
	}
	return ""
}

// maxComment is the size in bytes of the longest comment that nft can read, with its terminating zero
// (NFTNL_UDATA_COMMENT_MAXLEN).
const maxComment = 128

// CutComment returns the longest prefix of a comment that nft can read: at most 127 bytes.
func CutComment(s string) string { return s[:min(len(s), maxComment-1)] }
