package apply

import (
	"fmt"
	"math"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// found is what a family's table holds, elements aside.
type found struct {
	nft.TableInfo
	sets   map[string]nft.SetInfo
	chains map[string]nft.ChainInfo
}

func (k *Kernel) find(t *nft.Table) (found, error) {
	f := found{sets: map[string]nft.SetInfo{}, chains: map[string]nft.ChainInfo{}}
	var err error
	if f.TableInfo, err = k.conn.Table(t.Family, t.Name); err != nil || !f.Exists {
		return f, err
	}
	sets, err := k.conn.Sets(t.Family, t.Name)
	if err != nil {
		return f, err
	}
	for _, s := range sets {
		f.sets[s.Name] = s
	}
	chains, err := k.conn.Chains(t.Family, t.Name)
	for _, c := range chains {
		f.chains[c.Name] = c
	}
	return f, err
}

// compare tells why the tables aren't what the planner wants, or "" if they are. It reads chains, rules and sets, of which
// there are a few dozen, the number of elements where the kernel tells it, and of the elements only the one that says what
// the others are: reading many takes longer than writing them.
func (k *Kernel) compare(p *plan.Planner) (why string, err error) {
	held := map[nft.Family]found{}
	for _, t := range p.Tables() {
		f, err := k.find(t)
		if err != nil {
			return "", err
		}
		if err := k.noteUnused(p, t.Family, f); err != nil {
			return "", err
		}
		held[t.Family] = f
	}
	for _, t := range p.Tables() {
		f := held[t.Family]
		if !f.Exists {
			return fmt.Sprintf("there is no table %s %s", t.Family, t.Name), nil
		}
		for _, differs := range []func() (string, error){
			func() (string, error) { return compareSets(p, t, f), nil },
			func() (string, error) { return compareChains(p, t, f), nil },
			func() (string, error) { return k.compareRules(t) },
			func() (string, error) { return k.compareState(p.State(t.Family)) },
		} {
			if why, err := differs(); why != "" || err != nil {
				return fmt.Sprintf("table %s %s: %s", t.Family, t.Name, why), err
			}
		}
		adoptSizes(t, f)
	}
	return "", nil
}

// noteUnused tells the planner of chains that an earlier process made and didn't live to retire.
func (k *Kernel) noteUnused(p *plan.Planner, family nft.Family, f found) error {
	for name := range f.chains {
		p.FoundChain(family, name)
	}
	for _, s := range p.Dispatches(family) {
		if info, ok := f.sets[s.Name]; !ok || !info.Is(s) {
			continue
		}
		list, err := k.conn.Elements(s)
		if err != nil {
			return err
		}
		for i := range list {
			p.FoundDispatch(&list[i])
		}
	}
	return nil
}

func compareSets(p *plan.Planner, t *nft.Table, f found) string {
	if len(f.sets) != len(t.Sets) {
		return fmt.Sprintf("it has %d sets instead of %d", len(f.sets), len(t.Sets))
	}
	for _, s := range t.Sets {
		info, ok := f.sets[s.Name]
		n := p.Count(s)
		switch {
		case !ok:
			return fmt.Sprintf("set %s is missing", s.Name)
		case !info.Is(s):
			return fmt.Sprintf("set %s has another form", s.Name)
		case s.Dynamic || s.Timeout > 0 || s.Interval || info.Count < 0 || s.Name == plan.StateSet:
			// The kernel's number isn't there, or says nothing: rules add to it, its elements
			// run out, or it counts ranges in its own way.
		case info.Count != n:
			return fmt.Sprintf("set %s has %d elements instead of %d", s.Name, info.Count, n)
		}
	}
	return ""
}

func compareChains(p *plan.Planner, t *nft.Table, f found) string {
	if len(f.chains) != len(t.Chains)+p.LeftOvers(t.Family) {
		return fmt.Sprintf("it has %d chains instead of %d", len(f.chains), len(t.Chains))
	}
	for _, c := range t.Chains {
		if info, ok := f.chains[c.Name]; !ok || !sameChain(info, c) || info.Drops {
			return fmt.Sprintf("chain %s is missing or of another kind", c.Name)
		}
	}
	return ""
}

func sameChain(i nft.ChainInfo, c *nft.Chain) bool {
	return i.Type == c.Type && i.Hook == c.Hook && i.Priority == c.Priority
}

func (k *Kernel) compareRules(t *nft.Table) (string, error) {
	comments, err := k.conn.RuleComments(t.Family, t.Name)
	if err != nil {
		return "", err
	}
	for _, c := range t.Chains {
		var want []string
		for _, r := range c.Rules {
			want = append(want, r.Comment)
		}
		if !slices.Equal(comments[c.Name], want) {
			return fmt.Sprintf("the rules of chain %s differ from the plan", c.Name), nil
		}
	}
	return "", nil
}

func (k *Kernel) compareState(want *nft.Element) (string, error) {
	list, err := k.conn.Elements(want.Set)
	switch {
	case err != nil:
		return "", err
	case len(list) != 1:
		return "its element state is missing", nil
	case list[0].Comment == want.Comment:
		return "", nil
	}
	// The comments hold the key and are not shown.
	have, err := plan.ReadState(&list[0])
	wanted, unexpected := plan.ReadState(want)
	if parts := have.Differs(wanted); err == nil && parts != "" {
		return "not as wanted: " + parts, unexpected
	}
	return "this version cannot read its element state", unexpected
}

// adoptSizes makes the planner's sizes those of the kernel's sets.
func adoptSizes(t *nft.Table, f found) {
	for _, s := range t.Sets {
		s.Size = f.sets[s.Name].Size
	}
}

// mostAtOnce is the number of elements that one batch writes after somebody has deleted the tables: the kernel takes half a second.
const mostAtOnce = 250_000

// rewrite replaces all that the tables hold in one batch, without reading elements first. Remembered clients stay. Where there are no
// tables any more, many elements come in several batches: small Services do not wait for large ones.
func (k *Kernel) rewrite(p *plan.Planner, why string) (Result, error) {
	if len(k.states) == 0 {
		p.Prune()
	} else {
		p.ForgetLeftOvers() // a packet between two lookups still finds the chain of a class that was in use
	}
	p.Fit()
	b, most := nft.NewBatch(batchBytes(p)), math.MaxInt
	b.Report = k.counts != nil && len(k.states) > 0 // what an earlier process has left isn't counted
	tables, missing := p.Tables(), 0
	leftovers := map[nft.Family][]string{}
	for _, t := range tables {
		f, err := k.find(t)
		if err != nil {
			return Result{}, fmt.Errorf("read tables: %w", err)
		}
		if err := k.countFilled(t, f); err != nil {
			return Result{}, fmt.Errorf("read tables: %w", err)
		}
		if !f.Exists {
			missing++
		}
		b.AddTable(t)
		leftovers[t.Family] = clearTable(b, p, t, f)
		for _, c := range t.Chains {
			b.AddChain(t, c)
		}
		for _, c := range t.Chains {
			b.AddRules(t, c)
		}
	}
	k.replace(b)
	if missing == len(tables) && len(k.states) > 0 {
		most = k.atOnce
	}
	r := Result{Why: why}
	send := func() error {
		kind := Full
		if r.Elements > 0 {
			kind = Partial
		}
		part, err := k.commit(b, kind)
		r.Elements, r.Bytes, r.Commit = r.Elements+part.Elements, r.Bytes+part.Bytes, r.Commit+part.Commit
		b.Reset()
		return err
	}
	err := p.ElementsInParts(most, b.AddElement, send)
	r.Kind = Full
	if err != nil {
		return r, err
	}
	// The last part has what tells that nothing is missing.
	for _, t := range tables {
		b.AddElement(p.State(t.Family))
	}
	if err := send(); err != nil {
		return r, err
	}
	k.remember(p)
	for f, names := range leftovers {
		p.LeftOver(f, names)
	}
	return r, nil
}

// countFilled finds out how many elements packets have added to sets whose counters will be reported, where the kernel doesn't tell the
// number (before 6.16): there has to be room for the reports.
func (k *Kernel) countFilled(t *nft.Table, f found) error {
	for _, s := range t.Sets {
		info, exists := f.sets[s.Name]
		if !exists || !s.Dynamic || !s.Counter || info.Count >= 0 || !info.Is(s) {
			continue
		}
		info.Count = 0
		if err := k.conn.EachElement(s, func(*nft.Element) { info.Count++ }); err != nil {
			return err
		}
		f.sets[s.Name] = info
	}
	return nil
}

// batchBytes estimates the size of a batch with all elements, so that it is allocated once.
func batchBytes(p *plan.Planner) int {
	const perElement, constant = 72, 64 << 10
	n := constant
	for _, t := range p.Tables() {
		for _, s := range t.Sets {
			n += perElement * p.Count(s)
		}
	}
	return n
}

// clearTable empties a table, removes what doesn't belong there, and makes the sets that it needs. It returns the names of
// chains that have to stay for a while.
func clearTable(b *nft.Batch, p *plan.Planner, t *nft.Table, f found) (leftovers []string) {
	if f.Exists {
		b.FlushRules(t, "")
	}
	wanted := map[string]*nft.Set{}
	for _, s := range t.Sets {
		wanted[s.Name] = s
	}
	for name, info := range f.sets {
		s := wanted[name]
		switch {
		case s == nil || !info.Is(s):
			b.DeleteSet(t.Family, t.Name, name)
		case tooSmall(info, s, p.Count(s)):
			if s.Counter {
				b.FlushSet(s, max(info.Count, p.Count(s))) // so that nothing that was counted is lost
			}
			b.DeleteSet(t.Family, t.Name, name)
		case plan.Remembers(name):
			delete(wanted, name)
		case s.Interval && len(s.Key) > 1:
			b.DeleteSet(t.Family, t.Name, name) // the kernel takes very long to delete its elements
		default:
			b.FlushSet(s, max(info.Count, p.Count(s)))
			s.Size = info.Size
			delete(wanted, name)
		}
	}
	for _, s := range t.Sets {
		if wanted[s.Name] != nil {
			b.AddSet(s)
		}
	}
	return clearChains(b, t, f)
}

func clearChains(b *nft.Batch, t *nft.Table, f found) (leftovers []string) {
	wanted := map[string]*nft.Chain{}
	for _, c := range t.Chains {
		wanted[c.Name] = c
	}
	for name, info := range f.chains {
		switch c := wanted[name]; {
		case c != nil && sameChain(info, c):
		case c != nil || info.Type != "":
			b.DeleteChain(t, name)
		default:
			leftovers = append(leftovers, name)
		}
	}
	slices.Sort(leftovers)
	return leftovers
}

// tooSmall tells whether a set has less room than its elements and their growth need.
func tooSmall(info nft.SetInfo, s *nft.Set, n int) bool {
	return s.Size > 0 && info.Size < s.Size && n > int(info.Size/4*3)
}
