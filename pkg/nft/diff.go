package nft

import (
	"fmt"
	"maps"
	"slices"
)

// Line is one difference between the kernel's table and the wanted one.
type Line struct {
	// Wanted is true for an object that is missing in the kernel, and false for an unwanted one.
	Wanted bool `json:"wanted"`
	// Where is the family and the set or chain. Text is the element or rule in nft's language, or "" for the set or chain itself.
	Where string `json:"where"`
	Text  string `json:"text,omitempty"`
}

// String returns the line in the format of diff.
func (l Line) String() string {
	sign := "- "
	if l.Wanted {
		sign = "+ "
	}
	if l.Text == "" {
		return sign + l.Where
	}
	return sign + l.Where + ": " + l.Text
}

// Diff compares the kernel's table with the wanted one. elements are the wanted elements by set name. Diff ignores elements that
// packets have added, and the elements of the sets in ignore. It reads all other elements, in a time that grows with the square of
// their number.
func (c *Conn) Diff(want *Table, elements map[string][]Element, ignore ...string) ([]Line, error) {
	have, err := c.Read(want.Family, want.Name)
	if err != nil {
		return nil, err
	}
	d := comparison{conn: c, have: have, family: want.Family.Keyword() + " "}
	if !have.Exists {
		d.add(true, "table "+want.Name, "")
	}
	if have.Dormant {
		d.add(false, "table "+want.Name, "flags dormant")
	}
	wanted := map[string]*Set{}
	for _, s := range want.Sets {
		wanted[s.Name] = s
		if err := d.set(s, elements[s.Name], slices.Contains(ignore, s.Name)); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.Sets)) {
		if wanted[name] == nil {
			d.add(false, have.Sets[name].head(), "")
		}
	}
	d.chains(want, wanted)
	return d.lines, nil
}

type comparison struct {
	conn   *Conn
	have   *ReadTable
	family string
	lines  []Line
}

func (d *comparison) add(wanted bool, where, text string) {
	d.lines = append(d.lines, Line{Wanted: wanted, Where: d.family + where, Text: text})
}

// set compares the elements of a set.
func (d *comparison) set(s *Set, elements []Element, ignored bool) error {
	var there []Element
	info, exists := d.have.Infos[s.Name]
	switch {
	case !exists:
		d.add(true, s.head(), "")
	case !info.Is(s):
		d.add(false, s.head(), "of another form")
		d.add(true, s.head(), "")
	default:
		var err error
		if ignored || s.Dynamic {
			return nil
		}
		if there, err = d.conn.Elements(s); err != nil {
			return err
		}
	}
	if s.Dynamic || ignored {
		return nil
	}
	d.sorted(s.head(), s.List(there), s.List(elements))
	return nil
}

// sorted compares two sorted lists.
func (d *comparison) sorted(where string, have, want []string) {
	for len(have)+len(want) > 0 {
		switch {
		case len(want) == 0 || len(have) > 0 && have[0] < want[0]:
			d.add(false, where, have[0])
			have = have[1:]
		case len(have) == 0 || want[0] < have[0]:
			d.add(true, where, want[0])
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
}

// chains compares all chains and their rules. The order of the rules matters.
func (d *comparison) chains(want *Table, sets map[string]*Set) {
	wanted := map[string]*Chain{}
	for _, c := range want.Chains {
		wanted[c.Name] = c
	}
	for _, name := range slices.Sorted(maps.Keys(d.have.Chains)) {
		if wanted[name] == nil {
			d.chain(name, d.have.Chains[name], nil, nil)
		}
	}
	for _, c := range want.Chains {
		var rules []string
		for i := range c.Rules {
			rules = append(rules, c.Rules[i].text(want.Family, sets))
		}
		d.chain(c.Name, d.have.Chains[c.Name], c, rules)
	}
}

func (d *comparison) chain(name string, have *ReadChain, want *Chain, wantRules []string) {
	where := "chain " + name
	var haveHead, wantHead string
	var rules []string
	if have != nil {
		haveHead = chainHead(have.Type, have.Hook, have.Priority, have.Drops)
		for _, r := range have.Rules {
			rules = append(rules, RuleLine(Text(d.have.Family, r.Exprs, d.have.Sets), r.Comment))
		}
	}
	if want != nil {
		wantHead = chainHead(want.Type, want.Hook, want.Priority, false)
	}
	if have != nil && (want == nil || haveHead != wantHead) {
		d.add(false, where, haveHead)
	}
	if want != nil && (have == nil || haveHead != wantHead) {
		d.add(true, where, wantHead)
	}
	d.ordered(where, rules, wantRules)
}

func chainHead(typ string, hook uint32, priority int32, drops bool) string {
	if typ == "" {
		return ""
	}
	policy := "accept"
	if drops {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %d; policy %s;", typ, HookName(hook), priority, policy)
}

// ordered compares short lists whose order matters. Items outside the longest common subsequence are differences.
func (d *comparison) ordered(where string, have, want []string) {
	longest := make([][]int, len(have)+1)
	for i := range longest {
		longest[i] = make([]int, len(want)+1)
	}
	for i := len(have) - 1; i >= 0; i-- {
		for j := len(want) - 1; j >= 0; j-- {
			longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			if have[i] == want[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(have) || j < len(want) {
		switch {
		case i < len(have) && j < len(want) && have[i] == want[j]:
			i, j = i+1, j+1
		case j == len(want) || i < len(have) && longest[i+1][j] >= longest[i][j+1]:
			d.add(false, where, have[i])
			i++
		default:
			d.add(true, where, want[j])
			j++
		}
	}
}
