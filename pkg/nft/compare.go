package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// KernelTable is a table in the kernel, without elements.
type KernelTable struct {
	TableInfo
	// Sets are the sets by name, apart from the anonymous ones.
	Sets      map[string]SetInfo
	Anonymous []SetInfo
	Chains    map[string]*KernelChain
	Objects   []ObjectInfo
}

// KernelChain is a chain in the kernel.
type KernelChain struct {
	ChainInfo
	Rules []RuleInfo
}

// ReadTable reads a table. Its parts may belong to different generations: compare the generations before and after the
// call.
func (c *Conn) ReadTable(family inet.Family, name string) (*KernelTable, error) {
	t := &KernelTable{Sets: map[string]SetInfo{}, Chains: map[string]*KernelChain{}}
	var err error
	if t.TableInfo, err = c.Table(family, name); err != nil || !t.Exists {
		return t, err
	}
	sets, err := c.Sets(family, name)
	if err != nil {
		return t, err
	}
	for _, s := range sets {
		if s.Anonymous {
			t.Anonymous = append(t.Anonymous, s)
			continue
		}
		t.Sets[s.Name] = s
	}
	if t.Objects, err = c.Objects(family, name); err != nil {
		return t, err
	}
	chains, err := c.Chains(family, name)
	if err != nil {
		return t, err
	}
	for _, info := range chains {
		t.Chains[info.Name] = &KernelChain{ChainInfo: info}
	}
	rules, err := c.Rules(family.Number(), name)
	for _, r := range rules {
		if ch := t.Chains[r.Chain]; ch != nil { // nil if it was added meanwhile
			ch.Rules = append(ch.Rules, r)
		}
	}
	return t, err
}

// Difference is a difference between a table in the kernel and the wanted table.
type Difference struct {
	// In is the set, map or chain; "" for the table itself.
	In string
	// Have describes the object in the kernel, Want the wanted one. Both are "" for an object that is missing there.
	Have, Want string
	// Rules is true if Have and Want list the rules of a chain.
	Rules bool
}

// String returns the difference in words.
func (d Difference) String() string {
	switch {
	case d.Rules:
		return "the rules of " + d.In + " differ from the plan"
	case d.Have == "":
		return d.In + " is missing"
	case d.Want == "":
		return fmt.Sprintf("%s is %s", d.In, d.Have)
	}
	return strings.TrimSpace(fmt.Sprintf("%s is %s, should be %s", d.In, d.Have, d.Want))
}

// Differences returns the differences between the table in the kernel and the wanted table. It compares neither
// elements nor, apart from their comments, rules.
func (k *KernelTable) Differences(t *Table) (list []Difference) {
	add := func(in, have, want string) { list = append(list, Difference{In: in, Have: have, Want: want}) }
	if !k.Exists {
		add("", "", "the table")
		return list
	}
	if k.Dormant {
		add("", "dormant", "active")
	}
	for _, s := range t.Sets {
		switch info, exists := k.Sets[s.Name]; {
		case !exists:
			add(s.Head(), "", "present")
		case !info.Is(s):
			add(s.Head(), "of another form", "of the planned form")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.Sets)) {
		if t.Set(name) == nil {
			add("set "+name, "an unknown set", "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.Chains)) {
		if t.Chain(name) == nil {
			add("chain "+name, "an unknown chain", "")
		}
	}
	for _, o := range k.Objects {
		if c := t.Chain(o.Name); c == nil || c.Timeouts == (Timeouts{}) {
			add("object "+o.Name, "an unknown object", "")
		}
	}
	for _, c := range t.Chains {
		in, have := "chain "+c.Name, k.Chains[c.Name]
		switch {
		case have == nil:
			add(in, "", "present")
		case !have.Is(c):
			add(in, have.kind(), c.Info().kind())
		case have.Drops:
			add(in, "policy drop", "policy accept")
		case k.object(c.Name).Timeouts != c.Timeouts:
			add(in, "with other timeouts", "with the planned timeouts")
		default:
			if found, want := have.comments(), c.comments(); !slices.Equal(found, want) {
				list = append(list, Difference{In: in, Have: ruleList(found), Want: ruleList(want), Rules: true})
			}
		}
	}
	return list
}

func (c *KernelChain) comments() (list []string) {
	for _, r := range c.Rules {
		list = append(list, r.Comment)
	}
	return list
}

func (c *Chain) comments() (list []string) {
	for _, r := range c.Rules {
		list = append(list, r.Comment)
	}
	return list
}

func ruleList(comments []string) string {
	if len(comments) == 0 {
		return "no rules"
	}
	return fmt.Sprintf("%d rules (%s)", len(comments), strings.Join(comments, "; "))
}

// OtherRules returns the names of the chains of t whose rules in the kernel are not those of t. It ignores comments,
// and chains without rules in the kernel.
func (k *KernelTable) OtherRules(t *Table) (chains []string, err error) {
	for _, c := range t.Chains {
		have := k.Chains[c.Name]
		if have == nil || len(have.Rules) == 0 {
			continue
		}
		same := len(have.Rules) == len(c.Rules)
		for i := 0; same && i < len(c.Rules); i++ {
			if same, err = sameExpressions(t.Family, c.Rules[i].Exprs, have.Rules[i].Expressions); err != nil {
				return nil, err
			}
		}
		if !same {
			chains = append(chains, c.Name)
		}
	}
	return chains, nil
}

// sameExpressions reports whether the kernel's list of expressions has the sent attributes. The kernel adds attributes
// with default values.
func sameExpressions(family inet.Family, want []expr.Any, list []byte) (bool, error) {
	var got [][]byte
	for _, v := range netlink.Attributes(list) {
		got = append(got, v)
	}
	if len(got) != len(want) {
		return false, nil
	}
	for i, e := range want {
		sent, err := expr.Marshal(family.Number(), e)
		if err != nil {
			return false, fmt.Errorf("encode expression: %w", err)
		}
		if !sameExpression(got[i], sent) {
			return false, nil
		}
	}
	return true, nil
}

func sameExpression(got, sent []byte) bool {
	kindGot, dataGot := Expression(got)
	kind, data := Expression(sent)
	switch kind {
	case "nat":
		dataGot = withoutMapIPs(dataGot)
	case "counter":
		data = nil // ignore counted packets
	}
	return kind == kindGot && holds(dataGot, data)
}

// withoutMapIPs clears a flag that the kernel sets in a nat expression with an address.
func withoutMapIPs(b []byte) []byte {
	const mapIPs = 1 // NF_NAT_RANGE_MAP_IPS
	b = bytes.Clone(b)
	for typ, v := range netlink.Attributes(b) {
		if typ == unix.NFTA_NAT_FLAGS && len(v) == 4 {
			v[3] &^= mapIPs
		}
	}
	return b
}

// Expression splits an expression into its name and its data.
func Expression(b []byte) (name string, data []byte) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = netlink.Text(v)
		case unix.NFTA_EXPR_DATA:
			data = v
		}
	}
	return name, data
}

// holds reports whether a list has all wanted attributes. Attributes with value zero may be missing.
func holds(list, wanted []byte) bool {
	all := true
	for b := wanted; len(b) >= 4; {
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		want := b[4:n]
		nested, plain := typ&unix.NLA_F_NESTED != 0, typ&^unix.NLA_F_NESTED
		there, same := false, false
		for t, v := range netlink.Attributes(list) {
			if t == plain {
				there, same = true, bytes.Equal(v, want) || sameRegister(v, want) || nested && holds(v, want)
			}
		}
		all = all && (same || !there && len(bytes.Trim(want, "\x00")) == 0)
		b = b[min((n+3)&^3, len(b)):]
	}
	return all
}

// sameRegister reports whether two numbers stand for the same register. The kernel reports the 32-bit registers 8, 12,
// 16 and 20 under their old numbers 1 to 4.
func sameRegister(got, sent []byte) bool {
	if len(got) != 4 || len(sent) != 4 {
		return false
	}
	reg := netlink.Uint32(sent)
	return reg >= 8 && reg%4 == 0 && netlink.Uint32(got) == reg/4-1
}

// Fingerprint returns a hash of a table's constant part: sets without sizes, chains and rules, as encoded for the
// kernel.
func Fingerprint(t *Table) uint64 {
	b := NewBatch(64 << 10)
	b.AddTable(t)
	for _, s := range t.Sets {
		unsized := *s
		unsized.Size = 0
		b.AddSet(&unsized)
	}
	for _, c := range t.Chains {
		b.AddChain(t, c)
		b.AddRules(t, c)
	}
	b.Finish(b.last)
	return xxhash.Sum64(b.Buf)
}
