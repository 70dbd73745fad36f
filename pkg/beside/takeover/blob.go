package takeover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// hooks are the built-in chains by hook number.
var hooks = [5]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// tableInfo holds the offsets of the built-in chains in a table's entries (struct ipt_getinfo, from valid_hooks on).
type tableInfo struct {
	ValidHooks            uint32
	HookEntry, Underflow  [5]uint32
	NumEntries, EntrySize uint32
}

// blob is the content of a table of iptables-legacy, as the kernel returns it (linux/netfilter/x_tables.h): a
// sequence of entries, each with a header, matches and a target. A chain is a range of entries. A jump is a target
// with the offset of an entry. A user-defined chain begins with an entry whose target has the name ERROR, and the
// chain's name as its data. The last entry of a chain is its policy or a return.
type blob struct {
	tableInfo
	layout
	entries []byte
}

// layout has the offset of the fields target_offset and next_offset in struct ipt_entry or ip6t_entry, and the size
// of the struct.
type layout struct{ offsets, size int }

var (
	layout4 = layout{88, 112}
	layout6 = layout{140, 168}
)

// counterSize is the size of struct xt_counters.
const counterSize = 16

// errLayout means that a table does not have the kernel's layout.
var errLayout = errors.New("unexpected layout")

// entry has the offsets of one entry of a blob: its beginning, the next entry, and its target.
type entry struct {
	offset, next, target int
}

// at reads the entry at an offset.
func (b *blob) at(offset int) (entry, error) {
	if offset+b.size > len(b.entries) {
		return entry{}, fmt.Errorf("entry at %d of %d bytes: %w", offset, len(b.entries), errLayout)
	}
	offsets := b.entries[offset+b.offsets:]
	e := entry{
		offset: offset,
		target: offset + int(binary.NativeEndian.Uint16(offsets)),
		next:   offset + int(binary.NativeEndian.Uint16(offsets[2:])),
	}
	if e.target < offset+b.size || e.next < e.target+targetHeader || e.next > len(b.entries) {
		return entry{}, fmt.Errorf("entry at %d: target at %d, next at %d: %w", offset, e.target, e.next, errLayout)
	}
	return e, nil
}

// targetHeader is the size of struct xt_entry_target and xt_entry_match without data: size (u16), name (29), revision
// (u8).
const targetHeader = 32

// nameOf reads the name of a match or target.
func nameOf(header []byte) string { return cString(header[2:31]) }

func cString(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// verdict returns the value of a standard target: the offset of a jump or, if it is negative, a verdict or return.
func (b *blob) verdict(e entry) (v int, standard bool) {
	if nameOf(b.entries[e.target:]) != "" || e.next < e.target+targetHeader+4 {
		return 0, false
	}
	return int(int32(binary.NativeEndian.Uint32(b.entries[e.target+targetHeader:]))), true
}

// jump returns the offset of an entry's jump. A jump to the next entry does not count: it stands for a rule without a
// target.
func (b *blob) jump(e entry) (offset int, jumps bool) {
	v, standard := b.verdict(e)
	return v, standard && v >= 0 && v != e.next
}

// chainName returns the name of the user-defined chain that begins with an entry. For the last entry of the table,
// the name is "ERROR".
func (b *blob) chainName(e entry) (string, bool) {
	const longest = 30
	data := b.entries[e.target+targetHeader : e.next]
	if nameOf(b.entries[e.target:]) != "ERROR" || len(data) < longest {
		return "", false
	}
	return cString(data[:longest]), true
}

// comment returns the comment of an entry.
func (b *blob) comment(e entry) string {
	for offset := e.offset + b.size; offset+targetHeader <= e.target; {
		size := int(binary.NativeEndian.Uint16(b.entries[offset:]))
		if size < targetHeader || offset+size > e.target {
			break
		}
		if nameOf(b.entries[offset:]) == "comment" {
			return cString(b.entries[offset+targetHeader : offset+size])
		}
		offset += size
	}
	return ""
}

// content is a parsed blob. Each entry except the last one of the table belongs to a chain: as its first or last
// entry, or as a rule.
type content struct {
	ruleset
	entries []part
}

// part is an entry with its chain. starts is true for the first entry of a user-defined chain, and for the last one of
// the table. rule is the index of the entry's rule in the ruleset, or -1 if it is no rule.
type part struct {
	entry
	chain  string
	starts bool
	rule   int
}

// builtin is a built-in chain of a table, with the offsets of its first and last entry.
type builtin struct {
	name        string
	first, last int
}

func (b *blob) builtins() (list []builtin) {
	for h, name := range hooks {
		if b.ValidHooks&(1<<h) != 0 {
			list = append(list, builtin{name, int(b.HookEntry[h]), int(b.Underflow[h])})
		}
	}
	return list
}

// verdictDrop is the value of a standard target that drops: -NF_DROP-1.
const verdictDrop = -1

// parse parses a blob. An error means that it does not have the kernel's layout.
func (b *blob) parse(table string) (*content, error) {
	c := &content{ruleset: ruleset{table: table}}
	builtins := b.builtins()
	starts := map[int]string{} // chain by the offset of jumps to it
	chainAt := map[int]string{}
	current := ""
	for offset := 0; offset < len(b.entries); {
		e, err := b.at(offset)
		if err != nil {
			return nil, err
		}
		name, isStart := b.chainName(e)
		i := slices.IndexFunc(builtins, func(h builtin) bool { return h.first == offset })
		switch {
		case isStart && e.next == len(b.entries):
			current = ""
		case isStart:
			current = name
			starts[e.next] = name
			c.chains = append(c.chains, chain{name: name})
		case i >= 0:
			current = builtins[i].name
			policy, err := b.at(builtins[i].last)
			if err != nil {
				return nil, err
			}
			v, _ := b.verdict(policy)
			c.chains = append(c.chains, chain{name: current, builtin: true, drops: v == verdictDrop})
		}
		if current == "" && e.next != len(b.entries) {
			return nil, fmt.Errorf("entry at %d is in no chain: %w", offset, errLayout)
		}
		c.entries = append(c.entries, part{e, current, isStart, -1})
		chainAt[offset] = current
		offset = e.next
	}
	if n := len(c.entries); n == 0 || !c.entries[n-1].starts {
		return nil, fmt.Errorf("no end after %d bytes: %w", len(b.entries), errLayout)
	}
	for _, h := range builtins {
		if chainAt[h.first] != h.name || chainAt[h.last] != h.name {
			return nil, fmt.Errorf("chain %s from %d to %d: %w", h.name, h.first, h.last, errLayout)
		}
	}
	for i := range c.entries {
		e := &c.entries[i]
		isLast := slices.ContainsFunc(builtins, func(h builtin) bool { return h.last == e.offset })
		if e.starts || isLast || c.entries[i+1].starts {
			continue
		}
		r := rule{chain: e.chain, comment: b.comment(e.entry)}
		if offset, jumps := b.jump(e.entry); jumps {
			if starts[offset] == "" {
				return nil, fmt.Errorf("entry at %d jumps to %d: %w", e.offset, offset, errLayout)
			}
			r.targets = []string{starts[offset]}
		}
		e.rule = len(c.rules)
		c.rules = append(c.rules, r)
	}
	return c, nil
}

// without returns a blob without the parts in r, and for each remaining entry its index in c.entries.
func (b *blob) without(c *content, r *removal) (*blob, []int, error) {
	out := &blob{tableInfo: b.tableInfo, layout: b.layout}
	var from []int
	moved := map[int]int{} // new offset by old offset; for a removed entry, the offset of the next remaining one
	for i, e := range c.entries {
		moved[e.offset] = len(out.entries)
		if r.chains[e.chain] || slices.Contains(r.jumps, e.rule) {
			continue
		}
		from = append(from, i)
		out.entries = append(out.entries, b.entries[e.offset:e.next]...)
	}
	if err := out.fixJumps(b, moved); err != nil {
		return nil, nil, err
	}
	out.NumEntries, out.EntrySize = uint32(len(from)), uint32(len(out.entries))
	for h := range hooks {
		if out.ValidHooks&(1<<h) != 0 {
			out.HookEntry[h] = uint32(moved[int(b.HookEntry[h])])
			out.Underflow[h] = uint32(moved[int(b.Underflow[h])])
		}
	}
	return out, from, nil
}

// fixJumps replaces the offsets of jumps with the new ones.
func (b *blob) fixJumps(old *blob, moved map[int]int) error {
	for offset := 0; offset < len(b.entries); {
		e, err := b.at(offset)
		if err != nil {
			return err
		}
		offset = e.next
		v, standard := b.verdict(e)
		if !standard || v < 0 {
			continue
		}
		to, known := moved[v]
		if !known {
			return fmt.Errorf("jump to %d of %d bytes: %w", v, len(old.entries), errLayout)
		}
		binary.NativeEndian.PutUint32(b.entries[e.target+targetHeader:], uint32(to))
	}
	return nil
}
