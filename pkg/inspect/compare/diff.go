package compare

import (
	"maps"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Diff compares the kernel's tables with the wanted ones. elements are the wanted elements by family and set name. Diff
// ignores elements that packets have added, and the elements of the sets in ignore. It reads all other elements, in a
// time that grows with the square of their number.
func Diff(
	conn *nft.Conn, want []*nft.Table, elements map[inet.Family]map[string][]nft.Element, ignore ...string,
) (*view.Diff, error) {
	out, services := &view.Diff{Differences: []view.DiffLine{}}, newAffected()
	for _, t := range want {
		have, err := read.Load(conn, t.Family, t.Name)
		if err != nil {
			return nil, err
		}
		d := tableDiff{conn: conn, have: have, family: t.Family.Keyword() + " ", out: out, services: services}
		if err := d.compare(t, elements[t.Family], ignore); err != nil {
			return nil, err
		}
	}
	out.Services = services.changes()
	return out, nil
}

// tableDiff is the comparison of one table.
type tableDiff struct {
	conn     *nft.Conn
	have     *read.Table
	family   string
	out      *view.Diff
	services *affected
}

func (d *tableDiff) compare(want *nft.Table, elements map[string][]nft.Element, ignore []string) error {
	if !d.have.Exists {
		d.add(true, "table "+want.Name, "")
	}
	if d.have.Dormant {
		d.add(false, "table "+want.Name, "flags dormant")
	}
	wanted := map[string]*nft.Set{}
	for _, s := range want.Sets {
		wanted[s.Name] = s
		if err := d.set(s, elements[s.Name], s.Dynamic || slices.Contains(ignore, s.Name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.have.Sets)) {
		if want.Set(name) == nil {
			d.add(false, d.have.Sets[name].Head(), "")
		}
	}
	d.chains(want, wanted)
	return nil
}

func (d *tableDiff) add(wanted bool, where, text string) {
	d.out.Differences = append(d.out.Differences, view.DiffLine{Wanted: wanted, Where: d.family + where, Text: text})
}

// shared notes that an object differs that belongs to no single Service.
func (d *tableDiff) shared(where string) {
	if where = d.family + where; !slices.Contains(d.out.Shared, where) {
		d.out.Shared = append(d.out.Shared, where)
	}
}

// set compares the form of a set and, unless they are ignored, its elements.
func (d *tableDiff) set(s *nft.Set, elements []nft.Element, ignored bool) error {
	var there []nft.Element
	info, exists := d.have.Infos[s.Name]
	switch {
	case !exists:
		d.add(true, s.Head(), "")
	case !info.Is(s):
		d.add(false, s.Head(), "of another form")
		d.add(true, s.Head(), "")
	case !ignored:
		var err error
		if there, err = d.conn.Elements(s); err != nil {
			return err
		}
	}
	if ignored {
		return nil
	}
	before := len(d.out.Differences)
	d.sorted(s.Head(), read.List(s, there), read.List(s, elements))
	d.services.name(there, false)
	d.services.name(elements, true)
	if len(d.out.Differences) > before && !d.services.differ(there, elements) {
		d.shared(s.Head())
	}
	return nil
}

// sorted compares two sorted lists.
func (d *tableDiff) sorted(where string, have, want []string) {
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
func (d *tableDiff) chains(want *nft.Table, sets map[string]*nft.Set) {
	for _, name := range slices.Sorted(maps.Keys(d.have.Chains)) {
		if want.Chain(name) == nil {
			d.chain(name, d.have.Chains[name], nil, nil)
		}
	}
	for _, c := range want.Chains {
		rules := c.Timeouts.Lines(want.Family)
		for i := range c.Rules {
			rules = append(rules, read.RuleText(want.Family, &c.Rules[i], sets))
		}
		d.chain(c.Name, d.have.Chains[c.Name], c, rules)
	}
}

func (d *tableDiff) chain(name string, have *read.Chain, want *nft.Chain, wantRules []string) {
	where := "chain " + name
	var haveHead, wantHead string
	var rules []string
	if have != nil {
		haveHead = have.HookText()
		for _, o := range d.have.Objects {
			if o.Name == name {
				rules = o.Lines(d.have.Family)
			}
		}
		for i := range have.Rules {
			rules = append(rules, d.have.RuleText(&have.Rules[i]))
		}
	}
	if want != nil {
		wantHead = want.Info().HookText()
	}
	if have != nil && (want == nil || haveHead != wantHead) {
		d.add(false, where, haveHead)
	}
	if want != nil && (have == nil || haveHead != wantHead) {
		d.add(true, where, wantHead)
	}
	before := len(d.out.Differences)
	d.ordered(where, rules, wantRules)
	if len(d.out.Differences) > before {
		d.shared(where)
	}
}

// ordered compares short lists whose order matters.
func (d *tableDiff) ordered(where string, have, want []string) {
	for _, item := range have {
		at := slices.Index(want, item)
		if at < 0 {
			d.add(false, where, item)
			continue
		}
		d.missing(where, want[:at])
		want = want[at+1:]
	}
	d.missing(where, want)
}

func (d *tableDiff) missing(where string, items []string) {
	for _, item := range items {
		d.add(true, where, item)
	}
}
