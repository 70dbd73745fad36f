package apply

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// kernelTable is a family's table in the kernel, without elements.
type kernelTable struct {
	nft.TableInfo
	sets   map[string]nft.SetInfo
	chains map[string]nft.ChainInfo
}

func (k *Kernel) readTable(t *nft.Table) (kernelTable, error) {
	f := kernelTable{sets: map[string]nft.SetInfo{}, chains: map[string]nft.ChainInfo{}}
	var err error
	if f.TableInfo, err = k.conn.Table(t.Family, t.Name); err != nil || !f.Exists {
		return f, err
	}
	sets, err := k.conn.Sets(t.Family, t.Name)
	if err != nil {
		return f, err
	}
	for _, s := range sets {
		if !s.Anonymous {
			f.sets[s.Name] = s
		}
	}
	chains, err := k.conn.Chains(t.Family, t.Name)
	for _, c := range chains {
		f.chains[c.Name] = c
	}
	return f, err
}

// compare returns a difference between the kernel's tables and the ledger, or "" if there is none. It reads the few dozen chains, rules and sets, and
// the numbers of elements if the kernel reports them. It reads only the elements of the states, of the sets of the past and of the dispatch maps:
// the kernel takes longer to list many elements than to write them. If a table does not differ, its sets get the sizes of the kernel's sets.
func (k *Kernel) compare() (why string, err error) {
	held, err := k.readTables()
	if err != nil {
		return "", err
	}
	for _, t := range k.ledger.tables() {
		f := held[t.Family]
		if !f.Exists {
			return fmt.Sprintf("there is no table %s %s", t.Family.Keyword(), t.Name), nil
		}
		if why, err := k.compareTable(t, f); why != "" || err != nil {
			return fmt.Sprintf("table %s %s: %s", t.Family.Keyword(), t.Name, why), err
		}
		for _, s := range t.Sets {
			s.Size = f.sets[s.Name].Size
		}
	}
	return "", nil
}

func (k *Kernel) compareTable(t *nft.Table, f kernelTable) (why string, err error) {
	if why := cmp.Or(compareSets(k.ledger.counts, t, f), compareChains(t, f)); why != "" {
		return why, nil
	}
	if why, err = k.compareRules(t); why != "" || err != nil {
		return why, err
	}
	if why, err = k.comparePast(t); why != "" || err != nil {
		return why, err
	}
	return k.compareState(k.ledger.state(t.Family))
}

// readTables reads all tables without elements, and the elements of dispatch maps. It makes the ledger retain the chains of classes that an earlier
// process did not retire, with the elements that lead to them.
func (k *Kernel) readTables() (map[inet.Family]kernelTable, error) {
	all := map[inet.Family]kernelTable{}
	for _, t := range k.ledger.planner.Tables() {
		f, err := k.readTable(t)
		if err != nil {
			return nil, err
		}
		for name := range f.chains {
			k.ledger.retainChain(t.Family, name)
		}
		for _, s := range t.Sets {
			if info, ok := f.sets[s.Name]; !s.Verdict || !ok || !info.Is(s) {
				continue
			}
			list, err := k.conn.Elements(s)
			if err != nil {
				return nil, err
			}
			wanted := map[nft.ID]bool{}
			k.ledger.planner.Elements(func(e *nft.Element) { wanted[e.ID()] = true }, s)
			for i := range list {
				if e := &list[i]; !wanted[e.ID()] {
					k.ledger.retainElement(e)
				}
			}
		}
		all[t.Family] = f
	}
	return all, nil
}

func compareSets(counts map[*nft.Set]int, t *nft.Table, f kernelTable) string {
	if len(f.sets) != len(t.Sets) {
		return fmt.Sprintf("it has %d sets instead of %d", len(f.sets), len(t.Sets))
	}
	for _, s := range t.Sets {
		info, ok := f.sets[s.Name]
		n := counts[s]
		switch {
		case !ok:
			return fmt.Sprintf("set %s is missing", s.Name)
		case !info.Is(s):
			return fmt.Sprintf("set %s has another form", s.Name)
		case !plan.Planned(s) || s.Timeout > 0 || s.Interval || info.Count < 0:
			// The kernel does not report the number, or the number is not comparable: the set is not compared, elements expire, or the kernel counts
			// ranges differently.
		case info.Count != n:
			return fmt.Sprintf("set %s has %d elements instead of %d", s.Name, info.Count, n)
		}
	}
	return ""
}

func compareChains(t *nft.Table, f kernelTable) string {
	if len(f.chains) != len(t.Chains) {
		return fmt.Sprintf("it has %d chains instead of %d", len(f.chains), len(t.Chains))
	}
	for _, c := range t.Chains {
		if info, ok := f.chains[c.Name]; !ok || !info.Is(c) || info.Drops {
			return fmt.Sprintf("chain %s is missing or of another kind", c.Name)
		}
	}
	return ""
}

func (k *Kernel) compareRules(t *nft.Table) (string, error) {
	comments, err := k.conn.RuleComments(t.Family, t.Name)
	if err != nil {
		return "", err
	}
	for _, c := range t.Chains {
		if !slices.Equal(comments[c.Name], commentsOf(c)) {
			return fmt.Sprintf("the rules of chain %s differ from the plan", c.Name), nil
		}
	}
	return "", nil
}

func commentsOf(c *nft.Chain) (list []string) {
	for _, r := range c.Rules {
		list = append(list, r.Comment)
	}
	return list
}

// comparePast compares the elements of the sets that describe the past. The digest in the state omits them.
func (k *Kernel) comparePast(t *nft.Table) (why string, err error) {
	for _, s := range t.Sets {
		if s.Dynamic || s.Name == plan.StateSet || plan.Planned(s) {
			continue
		}
		list, err := k.conn.Elements(s)
		if err != nil {
			return "", err
		}
		wanted, found := map[nft.ID]bool{}, map[nft.ID]bool{}
		k.ledger.planner.Elements(func(e *nft.Element) { wanted[e.ID()] = true }, s)
		for i := range list {
			found[list[i].ID()] = true
		}
		if !maps.Equal(wanted, found) {
			return fmt.Sprintf("set %s has other elements", s.Name), nil
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
	// Do not show the comments: they contain the key.
	have, err := readState(&list[0])
	wanted, unexpected := readState(want)
	if parts := have.differingParts(wanted); err == nil && parts != "" {
		return "not as wanted: " + parts, unexpected
	}
	return "this version cannot read its element state", unexpected
}

// mostAtOnce is the number of elements that one batch writes after a foreign deletion of the tables. The kernel takes half a second for it.
const mostAtOnce = 250_000

// rewrite replaces everything in the tables except remembered clients, in one batch. It does not read the elements of Services first. If another
// program has deleted the tables, rewrite splits many elements into several batches, so that small Services do not wait for large ones.
func (k *Kernel) rewrite(why string) (Result, error) {
	l := k.ledger
	if len(k.states) == 0 {
		l.forgetRetained() // not at later syncs: a packet between two lookups may still need a retained chain
	}
	fit(l.sets, l.counts)
	b, most := nft.NewBatch(l.batchBytes()), math.MaxInt
	b.Report = k.counts != nil && len(k.states) > 0 // without states, the counters are those of an earlier process, and the program ignores them
	tables, missing := l.tables(), 0
	leftBehind := map[inet.Family][]string{}
	for _, t := range tables {
		f, err := k.readTable(t)
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
		leftBehind[t.Family] = clearTable(b, l.counts, t, f)
		for _, c := range t.Chains {
			b.AddChain(t, c)
		}
		for _, c := range t.Chains {
			b.AddRules(t, c)
		}
	}
	k.deleteKubeProxyTables(b)
	if missing == len(tables) && len(k.states) > 0 {
		most = k.atOnce
	}
	r := Result{Why: why}
	send := func() error {
		start, kind := k.Now(), Full
		if r.Elements > 0 {
			kind = Partial
			for _, lease := range leases(l.planner) {
				restart(b, lease, 0)
			}
		}
		part, err := k.sendBatch(b, kind)
		r.Elements, r.Bytes, r.Commit = r.Elements+part.Elements, r.Bytes+part.Bytes, r.Commit+part.Commit
		if b = nft.NewBatch(0); err == nil {
			k.leased = start
		}
		return err
	}
	add := func(e *nft.Element) { b.AddElement(e) } // send replaces b
	l.eachRetained(add)
	err := l.planner.ElementsInParts(most, add, send)
	r.Kind = Full
	if err != nil {
		return r, err
	}
	// The states are in the last part, because they mean that the tables are complete.
	for _, t := range tables {
		b.AddElement(l.state(t.Family))
	}
	if err := send(); err != nil {
		return r, err
	}
	k.markKnown()
	for f, names := range leftBehind {
		l.retainEmptied(f, names)
	}
	return r, nil
}

// countFilled counts the elements of sets that packets fill and that have counters, if the kernel does not report the number (before 6.16). The socket needs
// room for the reports of these counters.
func (k *Kernel) countFilled(t *nft.Table, f kernelTable) error {
	for _, s := range t.Sets {
		info, exists := f.sets[s.Name]
		if !exists || !s.Dynamic || !s.Counter || info.Count >= 0 || !info.Is(s) {
			continue
		}
		info.Count = 0
		_, err := k.conn.Each(s, func(*nft.Found) bool {
			info.Count++
			return true
		})
		if err != nil {
			return err
		}
		f.sets[s.Name] = info
	}
	return nil
}

// batchBytes estimates the size of a batch with all elements, so that its memory is allocated once.
func (l *ledger) batchBytes() int {
	const perElement, constant = 72, 64 << 10
	n := constant
	for _, count := range l.counts {
		n += perElement * count
	}
	return n
}

// clearTable empties a table, deletes unknown sets and chains, and adds the missing sets. It returns the names of chains that the batch cannot
// delete.
func clearTable(b *nft.Batch, counts map[*nft.Set]int, t *nft.Table, f kernelTable) (leftBehind []string) {
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
		case tooSmall(info, s, counts[s]):
			if s.Counter {
				b.FlushSet(s, max(info.Count, counts[s])) // the kernel reports no counters when it deletes a set
			}
			b.DeleteSet(t.Family, t.Name, name)
		case plan.Remembers(name):
			delete(wanted, name)
		case hasRanges(s):
			b.DeleteSet(t.Family, t.Name, name)
		default:
			b.FlushSet(s, max(info.Count, counts[s]))
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

func clearChains(b *nft.Batch, t *nft.Table, f kernelTable) (leftBehind []string) {
	wanted := map[string]*nft.Chain{}
	for _, c := range t.Chains {
		wanted[c.Name] = c
	}
	for name, info := range f.chains {
		switch c := wanted[name]; {
		case c != nil && info.Is(c):
		case c != nil || info.Type != "":
			b.DeleteChain(t, name)
		default:
			leftBehind = append(leftBehind, name)
		}
	}
	slices.Sort(leftBehind)
	return leftBehind
}

// tooSmall reports whether the kernel's set is smaller than the plan's and more than three quarters full with n elements.
func tooSmall(info nft.SetInfo, s *nft.Set, n int) bool {
	return s.Size > 0 && info.Size < s.Size && n > int(info.Size/4*3)
}
