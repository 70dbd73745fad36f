package apply

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// compare returns a difference between the kernel's tables and the ledger, or "" if there is none. It reads the few
// dozen chains, rules and sets, and the numbers of elements if the kernel reports them. It reads only the elements of
// the states, of the sets of the past and of the dispatch maps: the kernel takes longer to list many elements than to
// write them. If a table does not differ, its sets get the sizes of the kernel's sets.
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
			s.Size = f.Sets[s.Name].Size
		}
	}
	return "", nil
}

func (k *Kernel) compareTable(t *nft.Table, f *nft.KernelTable) (why string, err error) {
	if d := f.Differences(t); len(d) > 0 {
		return d[0].String(), nil
	}
	for _, s := range t.Sets {
		n, count := k.ledger.counts[s], f.Sets[s.Name].Count
		// Elements of other sets expire, packets add them, or the kernel counts ranges differently. Before 6.16, the
		// kernel does not report the number.
		comparable := plan.Planned(s) && s.Timeout == 0 && !s.Interval && count >= 0
		if comparable && count != n {
			return fmt.Sprintf("set %s has %d elements instead of %d", s.Name, count, n), nil
		}
	}
	if why, err = k.comparePast(t); why != "" || err != nil {
		return why, err
	}
	return k.compareState(k.ledger.state(t.Family))
}

// readTables reads all tables without elements, and the elements of dispatch maps. It makes the ledger retain the
// chains of classes that an earlier process did not retire, with the elements that lead to them.
func (k *Kernel) readTables() (map[inet.Family]*nft.KernelTable, error) {
	all := map[inet.Family]*nft.KernelTable{}
	for _, t := range k.ledger.planner.Tables() {
		f, err := k.conn.ReadTable(t.Family, t.Name)
		if err != nil {
			return nil, err
		}
		for name := range f.Chains {
			k.ledger.retainChain(t.Family, name)
		}
		for _, s := range t.Sets {
			if info, ok := f.Sets[s.Name]; !s.Verdict || !ok || !info.Is(s) {
				continue
			}
			list, err := k.conn.Elements(s)
			if err != nil {
				return nil, err
			}
			wanted := k.ledger.wanted(s)
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

// wanted returns the elements of a set that the plan has.
func (l *ledger) wanted(s *nft.Set) map[nft.ID]bool {
	ids := map[nft.ID]bool{}
	l.planner.Elements(func(e *nft.Element) { ids[e.ID()] = true }, s)
	return ids
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
		found := map[nft.ID]bool{}
		for i := range list {
			found[list[i].ID()] = true
		}
		if !maps.Equal(k.ledger.wanted(s), found) {
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

// mostAtOnce is the number of elements that one batch writes after a foreign deletion of the tables. The kernel takes
// half a second for it.
const mostAtOnce = 250_000

// rewrite replaces everything in the tables except remembered clients, in one batch. It does not read the elements of
// Services first. If there are no tables, because another program has deleted them or the node was just started,
// rewrite splits many elements into several batches, so that small Services do not wait for large ones. But if the
// batch also deletes the tables of kube-proxy, these serve until then.
func (k *Kernel) rewrite(why string) (Result, error) {
	l := k.ledger
	if len(k.states) == 0 {
		l.forgetRetained() // not at later syncs: a packet between two lookups may still need a retained chain
	}
	fit(l.sets, l.counts)
	b, most := nft.NewBatch(l.batchBytes()), math.MaxInt
	// Without states, the counters are those of an earlier process, and the program ignores them.
	b.Report = k.counts != nil && len(k.states) > 0
	tables, missing := l.tables(), 0
	leftBehind := map[inet.Family][]string{}
	for _, t := range tables {
		f, err := k.conn.ReadTable(t.Family, t.Name)
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
	if missing == len(tables) && len(k.takeOver.found) == 0 {
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

// countFilled counts the elements of sets that packets fill and that have counters, if the kernel does not report the
// number (before 6.16). The socket needs room for the reports of these counters.
func (k *Kernel) countFilled(t *nft.Table, f *nft.KernelTable) error {
	for _, s := range t.Sets {
		info, exists := f.Sets[s.Name]
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
		f.Sets[s.Name] = info
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

// clearTable empties a table, deletes unknown sets and chains, and adds the missing sets. It returns the names of
// chains that the batch cannot delete.
func clearTable(b *nft.Batch, counts map[*nft.Set]int, t *nft.Table, f *nft.KernelTable) (leftBehind []string) {
	if f.Exists {
		b.FlushRules(t, "")
	}
	kept := map[*nft.Set]bool{}
	for name, info := range f.Sets {
		s := t.Set(name)
		switch {
		case s == nil || !info.Is(s):
			b.DeleteSet(t.Family, t.Name, name)
		case tooSmall(info, s, counts[s]):
			if s.Counter {
				b.FlushSet(s, max(info.Count, counts[s])) // the kernel reports no counters when it deletes a set
			}
			b.DeleteSet(t.Family, t.Name, name)
		case plan.Remembers(name):
			kept[s] = true
		case hasRanges(s):
			b.DeleteSet(t.Family, t.Name, name)
		default:
			b.FlushSet(s, max(info.Count, counts[s]))
			s.Size = info.Size
			kept[s] = true
		}
	}
	for _, o := range f.Objects {
		c, chain := t.Chain(o.Name), f.Chains[o.Name]
		if c != nil && c.Timeouts != o.Timeouts || c == nil && chain == nil {
			b.DeleteObject(t, &o) // otherwise its chain is left behind, too
		}
	}
	for _, s := range t.Sets {
		if !kept[s] {
			b.AddSet(s)
		}
	}
	for name, info := range f.Chains {
		switch c := t.Chain(name); {
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

// tooSmall reports whether the kernel's set is smaller than the plan's and more than three quarters full with n
// elements.
func tooSmall(info nft.SetInfo, s *nft.Set, n int) bool {
	return s.Size > 0 && info.Size < s.Size && n > int(info.Size/4*3)
}
