package apply

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// ErrChanged means that the result of a reading may be wrong because the ruleset changed meanwhile.
var ErrChanged = errors.New("the ruleset changed during the reading")

// Differences reads the complete tables, with its own connection, and compares them with a plan. The result counts all differences, and lists up to
// most of them. Retained elements and chains, and elements that packets add, are not differences. No other goroutine may use the planner. The
// error is [ErrChanged] if the ruleset changed during the reading. The result is then complete, but may be wrong.
func Differences(p *plan.Planner, most int) (v *view.Verification, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := comparison{Kernel: &Kernel{conn: conn, ledger: newLedger(p)}, most: most, out: &view.Verification{Differences: []view.Difference{}}}
	if c.out.Generation, err = conn.Generation(); err != nil {
		return nil, err
	}
	held, err := c.findAll()
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	c.want()
	for _, t := range c.ledger.tables() {
		if err := c.table(t, held[t.Family]); err != nil {
			return nil, fmt.Errorf("read tables: %w", err)
		}
	}
	now, err := conn.Generation()
	if err == nil && now != c.out.Generation {
		err = ErrChanged
	}
	return c.out, err
}

// comparison is the state of one call of [Differences].
type comparison struct {
	*Kernel
	most int
	out  *view.Verification
	// wanted has the hashes of each set's planned elements. The value is true after the kernel listed the element. Hashes take much less memory
	// than the elements.
	wanted map[*nft.Set]map[uint64]bool
}

func (c *comparison) want() {
	c.wanted = map[*nft.Set]map[uint64]bool{}
	c.ledger.each(func(e *nft.Element) {
		if c.wanted[e.Set] == nil {
			c.wanted[e.Set] = make(map[uint64]bool, c.ledger.counts[e.Set])
		}
		c.wanted[e.Set][c.ledger.hash(e)] = false
	})
}

func (c *comparison) differs(d view.Difference) {
	if c.out.Total++; c.out.Total <= c.most {
		c.out.Differences = append(c.out.Differences, d)
	}
}

func (c *comparison) table(t *nft.Table, f found) error {
	name := fmt.Sprintf("%s %s", t.Family.Keyword(), t.Name)
	if c.out.Tables++; !f.Exists {
		c.differs(view.Difference{Table: name, Want: "the table"})
		return nil
	}
	c.chains(t, name, f)
	if err := c.rules(t, name); err != nil {
		return err
	}
	sets := map[string]bool{}
	for _, s := range t.Sets {
		sets[s.Name] = true
		info, exists := f.sets[s.Name]
		switch {
		case !exists:
			c.differs(view.Difference{Table: name, In: kindOf(s) + " " + s.Name, Want: "present"})
			continue
		case !info.Is(s):
			c.differs(view.Difference{Table: name, In: kindOf(s) + " " + s.Name, Have: "of another form", Want: "of the planned form"})
			continue
		case s.Dynamic || s.Name == plan.StateSet:
			continue
		}
		if err := c.elements(s, name); err != nil {
			return err
		}
	}
	for set := range f.sets {
		if !sets[set] {
			c.differs(view.Difference{Table: name, In: "set " + set, Have: "an unknown set"})
		}
	}
	return nil
}

func kindOf(s *nft.Set) string {
	if s.IsMap() {
		return "map"
	}
	return "set"
}

func (c *comparison) chains(t *nft.Table, name string, f found) {
	wanted := map[string]bool{}
	for _, ch := range t.Chains {
		wanted[ch.Name] = true
		info, exists := f.chains[ch.Name]
		d := view.Difference{Table: name, In: "chain " + ch.Name}
		switch {
		case !exists:
			d.Want = "present"
		case !sameChain(info, ch):
			d.Have, d.Want = hooked(info.Type, info.Hook, info.Priority), hooked(ch.Type, ch.Hook, ch.Priority)
		case info.Drops:
			d.Have, d.Want = "policy drop", "policy accept"
		default:
			continue
		}
		c.differs(d)
	}
	for ch := range f.chains {
		if !wanted[ch] {
			c.differs(view.Difference{Table: name, In: "chain " + ch, Have: "an unknown chain"})
		}
	}
}

func hooked(kind string, hook uint32, priority int32) string {
	if kind == "" {
		return "without a hook"
	}
	return fmt.Sprintf("type %s at hook %d, priority %d", kind, hook, priority)
}

// rules compares the number, comments and expressions of the rules of all chains.
func (c *comparison) rules(t *nft.Table, name string) error {
	comments, err := c.conn.RuleComments(t.Family, t.Name)
	if err != nil {
		return err
	}
	rest := *t
	rest.Chains = slices.Clone(t.Chains)
	without := func(chain string) {
		rest.Chains = slices.DeleteFunc(rest.Chains, func(ch *nft.Chain) bool { return ch.Name == chain })
	}
	for _, ch := range t.Chains {
		c.out.Rules += len(ch.Rules)
		want := commentsOf(ch)
		if have := comments[ch.Name]; !slices.Equal(have, want) {
			c.differs(view.Difference{Table: name, In: "chain " + ch.Name, Have: ruleList(have), Want: ruleList(want)})
			without(ch.Name)
		}
	}
	for {
		chain, err := c.conn.Differing(&rest)
		if err != nil || chain == "" {
			return err
		}
		c.differs(view.Difference{Table: name, In: "chain " + chain, Have: "other rules", Want: "the planned rules"})
		without(chain)
	}
}

func ruleList(comments []string) string {
	if len(comments) == 0 {
		return "no rules"
	}
	return fmt.Sprintf("%d rules (%s)", len(comments), strings.Join(comments, "; "))
}

// elements compares the elements of a set. While the kernel resizes a set, it may list an element twice. Such an element counts once.
func (c *comparison) elements(s *nft.Set, table string) error {
	wanted := c.wanted[s]
	delete(c.wanted, s)
	unknown := map[nft.ID]nft.Element{}
	err := c.conn.EachElement(s, func(e *nft.Element) {
		switch seen, is := wanted[c.ledger.hash(e)]; {
		case !is:
			unknown[e.ID()] = *e
		case !seen:
			wanted[c.ledger.hash(e)] = true
			c.out.Elements++
		}
	})
	if err != nil {
		return err
	}
	c.out.Elements += len(unknown)
	c.listed(s, table, unknown, c.missing(s, wanted))
	return nil
}

// missing returns the planned elements of a set that the kernel does not have.
func (c *comparison) missing(s *nft.Set, wanted map[uint64]bool) map[nft.ID]nft.Element {
	missing := map[nft.ID]nft.Element{}
	all := true
	for _, seen := range wanted {
		all = all && seen
	}
	if all {
		return missing
	}
	c.ledger.planner.ElementsOf(s, func(e *nft.Element) { // a retained element cannot be missing: findAll read it from the kernel
		if !wanted[c.ledger.hash(e)] {
			missing[e.ID()] = *e
		}
	})
	return missing
}

// listed lists the differences of a set: unknown elements, elements with another value, and missing elements.
func (c *comparison) listed(s *nft.Set, table string, unknown, missing map[nft.ID]nft.Element) {
	in := kindOf(s) + " " + s.Name
	byKey := func(list map[nft.ID]nft.Element) []nft.Element {
		return slices.SortedFunc(maps.Values(list), func(a, b nft.Element) int { return bytes.Compare(a.Key.Bytes(), b.Key.Bytes()) })
	}
	for _, have := range byKey(unknown) {
		d := view.Difference{Table: table, In: in, Key: keyOf(&have), Have: valueOf(&have), Service: have.Comment}
		if want, changed := missing[have.ID()]; changed {
			delete(missing, have.ID())
			d.Want, d.Service = valueOf(&want), want.Comment
		}
		c.differs(d)
	}
	for _, want := range byKey(missing) {
		c.out.Elements++
		c.differs(view.Difference{Table: table, In: in, Key: keyOf(&want), Want: valueOf(&want), Service: want.Comment})
	}
}

// keyOf returns an element's key in nft's form.
func keyOf(e *nft.Element) string {
	key := e.Set.KeyText(e.Key)
	if !e.KeyEnd.Empty() {
		key += " - " + e.Set.KeyText(e.KeyEnd)
	}
	if e.IntervalEnd {
		key = "the end of a range at " + key
	}
	return key
}

// valueOf returns the data of an element in nft's form. For an element without data, it returns "an element" with the comment.
func valueOf(e *nft.Element) string {
	text := e.String()
	if i := strings.LastIndex(text, " : "); e.Set.IsMap() && i >= 0 {
		value := strings.TrimSuffix(text[i+len(" : "):], " }")
		if e.MaxConnections > 0 {
			value += fmt.Sprintf(", at most %d connections", e.MaxConnections)
		}
		return value
	}
	if e.Comment != "" {
		return fmt.Sprintf("an element with comment %q", e.Comment)
	}
	return "an element"
}
