package compare

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Verify reads the complete tables, with its own connection, and compares them with a plan. The result counts all
// differences, and lists up to most of them. Elements and chains that pkg/apply retains, and elements that packets add,
// are not differences. No other goroutine may use the planner. The error is [nft.ErrChanged] if the ruleset changed
// during the reading. The result is then complete, but may be wrong.
func Verify(p *plan.Planner, most int) (v *view.Verification, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	c := comparison{
		conn: conn, planner: p, most: most, seed: maphash.MakeSeed(),
		out: &view.Verification{Differences: []view.Difference{}},
	}
	if c.out.Generation, err = conn.Generation(); err != nil {
		return nil, err
	}
	c.want()
	for _, t := range p.Tables() {
		if err := c.table(t); err != nil {
			return nil, fmt.Errorf("read tables: %w", err)
		}
	}
	now, err := conn.Generation()
	if err == nil && now != c.out.Generation {
		err = nft.ErrChanged
	}
	return c.out, err
}

// comparison is the state of one call of [Verify].
type comparison struct {
	conn    *nft.Conn
	planner *plan.Planner
	most    int
	out     *view.Verification
	// wanted has the hashes of each set's planned elements. The value is true after the kernel listed the element.
	// Hashes take much less memory than the elements. seed is random, so that a tenant cannot create objects whose
	// elements have the same hash as other elements.
	wanted map[*nft.Set]map[uint64]bool
	seed   maphash.Seed
	names  names
}

func (c *comparison) want() {
	c.wanted, c.names = map[*nft.Set]map[uint64]bool{}, names{}
	c.planner.Elements(func(e *nft.Element) {
		c.names.note(e)
		if c.wanted[e.Set] == nil {
			c.wanted[e.Set] = map[uint64]bool{}
		}
		c.wanted[e.Set][c.hash(e)] = false
	})
}

func (c *comparison) hash(e *nft.Element) uint64 {
	held := *e
	held.Comment = nft.CutComment(e.Comment) // the kernel has only this part
	return maphash.Comparable(c.seed, held)
}

func (c *comparison) differs(d view.Difference) {
	if c.out.Total++; c.out.Total <= c.most {
		c.out.Differences = append(c.out.Differences, d)
	}
}

func (c *comparison) table(t *nft.Table) error {
	have, err := c.conn.ReadTable(t.Family, t.Name)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(have.Chains)) {
		if retained := c.planner.Rules().ClassChain(t.Family, name); retained != nil && t.Chain(name) == nil {
			t.Chains = append(t.Chains, retained) // pkg/apply retains it
		}
	}
	others, err := have.OtherRules(t)
	if err != nil {
		return err
	}
	c.out.Tables++
	name, differs := fmt.Sprintf("%s %s", t.Family.Keyword(), t.Name), map[string]bool{}
	for _, d := range have.Differences(t) {
		differs[d.In] = true
		c.differs(view.Difference{Table: name, In: d.In, Have: d.Have, Want: d.Want})
	}
	if !have.Exists {
		return nil
	}
	for _, chain := range others {
		if in := "chain " + chain; !differs[in] {
			c.differs(view.Difference{Table: name, In: in, Have: "other rules", Want: "the planned rules"})
		}
	}
	for _, ch := range t.Chains {
		c.out.Rules += len(ch.Rules)
	}
	for _, s := range t.Sets {
		if plan.Planned(s) && !differs[s.Head()] {
			if err := c.elements(s, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// elements compares the elements of a set. While the kernel resizes a set, it may list an element twice. Such an
// element counts once.
func (c *comparison) elements(s *nft.Set, table string) error {
	wanted := c.wanted[s]
	delete(c.wanted, s)
	unknown, retained := map[nft.ID]nft.Element{}, map[nft.ID]bool{}
	_, err := c.conn.Each(s, func(f *nft.Found) bool {
		e := &f.Element
		hash := c.hash(e)
		switch seen, is := wanted[hash]; {
		case is && !seen:
			wanted[hash] = true
			c.out.Elements++
		case is:
		case c.planner.Rules().LeadsToClass(e): // pkg/apply retains it
			retained[e.ID()] = true
		default:
			unknown[e.ID()] = *e
		}
		return true
	})
	if err != nil {
		return err
	}
	c.out.Elements += len(unknown) + len(retained)
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
	c.planner.Elements(func(e *nft.Element) {
		if !wanted[c.hash(e)] {
			missing[e.ID()] = *e
		}
	}, s)
	return missing
}

// listed lists the differences of a set: unknown elements, elements with another value, and missing elements.
func (c *comparison) listed(s *nft.Set, table string, unknown, missing map[nft.ID]nft.Element) {
	in := s.Head()
	byKey := func(list map[nft.ID]nft.Element) []nft.Element {
		return slices.SortedFunc(maps.Values(list), func(a, b nft.Element) int {
			return bytes.Compare(a.Key.Bytes(), b.Key.Bytes())
		})
	}
	for _, have := range byKey(unknown) {
		d := view.Difference{
			Table: table, In: in, Key: keyOf(&have), Have: valueOf(&have), Service: c.names.of(&have),
		}
		if want, changed := missing[have.ID()]; changed {
			delete(missing, have.ID())
			d.Want, d.Service = valueOf(&want), c.names.of(&want)
		}
		c.differs(d)
	}
	for _, want := range byKey(missing) {
		c.out.Elements++
		c.differs(view.Difference{
			Table: table, In: in, Key: keyOf(&want), Want: valueOf(&want), Service: c.names.of(&want),
		})
	}
}

// keyOf returns an element's key in nft's form.
func keyOf(e *nft.Element) string {
	key := e.Key.Text(e.Set.Key)
	if e.KeyEnd != (nft.Value{}) {
		key += " - " + e.KeyEnd.Text(e.Set.Key)
	}
	if e.IntervalEnd {
		key = "the end of a range at " + key
	}
	return key
}

// valueOf returns the data of an element in nft's form. For an element without data, it returns "an element" with the
// comment.
func valueOf(e *nft.Element) string {
	value, isMap := strings.CutPrefix(e.DataText(), " : ")
	switch {
	case isMap && e.MaxConnections > 0:
		return fmt.Sprintf("%s, at most %d connections", value, e.MaxConnections)
	case isMap:
		return value
	case e.Comment != "":
		return fmt.Sprintf("an element with comment %q", e.Comment)
	}
	return "an element"
}
