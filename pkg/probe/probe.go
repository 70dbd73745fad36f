package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Kernel is asked whether it would accept a batch.
type Kernel interface {
	Check(*nft.Batch) ([]nft.Refused, error)
}

// Run asks the kernel for everything that the tables use, each thing once for each family, in one batch. An error means that it
// isn't known what is missing.
func Run(k Kernel, tables []*nft.Table) ([]Missing, error) {
	b := nft.NewBatch(0)
	var questions []question
	for _, t := range tables {
		a := asker{batch: b, table: t, sets: map[string]bool{}, asked: map[string]bool{}}
		a.ask()
		questions = append(questions, a.questions...)
	}
	refused, err := k.Check(b)
	if err != nil {
		return nil, err
	}
	return blame(questions, refused)
}

// question is a message that the kernel accepts if it has a feature, and everything that the feature is used with.
type question struct {
	message int
	family  nft.Family
	what    feature
	// needs are the other features without which it is refused, too.
	needs []feature
}

// asker writes the questions about one table into a batch.
type asker struct {
	batch     *nft.Batch
	table     *nft.Table
	questions []question
	// sets are the names of those that are there; asked has the names of features that were asked for.
	sets, asked map[string]bool
}

// tableName is that of the tables that are tried and never come to be.
const tableName = "kube-nftproxy-probe"

// What every question needs.
var (
	table = feature{name: "tables"}
	chain = feature{name: "chains"}
)

func (a *asker) ask() {
	a.batch.AddDormantTable(a.table.Family, tableName)
	a.question(table)
	rules := &nft.Chain{Name: "rules"}
	a.batch.AddChain(a.there(), rules)
	a.question(chain, table)
	a.baseChains()
	for _, s := range a.table.Sets {
		if a.isNew(setFeature(s)) {
			a.set(s)
		}
	}
	for _, p := range a.phrases() {
		a.phrase(rules, p)
	}
}

// there names the table.
func (a *asker) there() *nft.Table { return &nft.Table{Family: a.table.Family, Name: tableName} }

func (a *asker) isNew(f feature) bool {
	known := a.asked[f.name]
	a.asked[f.name] = true
	return !known
}

func (a *asker) question(what feature, needs ...feature) {
	a.questions = append(a.questions, question{a.batch.Messages(), a.table.Family, what, needs})
}

// baseChains asks for base chains of each type.
func (a *asker) baseChains() {
	for _, c := range a.table.Chains {
		if !c.IsBase() {
			continue
		}
		if f := chainFeature(c); a.isNew(f) {
			a.batch.AddChain(a.there(), &nft.Chain{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority})
			a.question(f, table)
		}
	}
}

// set makes a set, with little room, unless it is there.
func (a *asker) set(s *nft.Set) {
	if a.sets[s.Name] {
		return
	}
	a.sets[s.Name] = true
	small := *s
	const room = 16
	small.Table, small.Size = tableName, min(s.Size, room)
	a.batch.AddSet(&small)
	a.question(setFeature(s), table)
}

// phrase is an expression at the end of those that have to be in front of it, because they load the registers that it reads.
type phrase []expr.Any

// phrases returns one for each kind of expression in the table: that with the fewest others which a kernel may lack. No expression
// in front of the last one has its own phrase later.
func (a *asker) phrases() []phrase {
	best := map[string]phrase{}
	for _, c := range a.table.Chains {
		for _, r := range c.Rules {
			for i, e := range r.Exprs {
				if _, ok := e.(*expr.Verdict); ok {
					break // there is no such chain; every kernel has verdicts
				}
				p := phrase(r.Exprs[:i+1])
				name := p.name(a.table.Family)
				if b, known := best[name]; !known || a.compare(p, b) < 0 {
					best[name] = p
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(best), a.compare)
}

// compare puts phrases with fewer modules first, then shorter ones.
func (a *asker) compare(p, q phrase) int {
	f := a.table.Family
	return cmp.Or(cmp.Compare(p.modules(f), q.modules(f)), cmp.Compare(len(p), len(q)), cmp.Compare(p.name(f), q.name(f)))
}

// name is that of the feature that a phrase asks for.
func (p phrase) name(f nft.Family) string { return expressionFeature(f, p[len(p)-1]).name }

// modules counts the expressions that may be modules.
func (p phrase) modules(f nft.Family) (n int) {
	for _, e := range p {
		if expressionFeature(f, e).module != "" {
			n++
		}
	}
	return n
}

// phrase asks for the last expression of one.
func (a *asker) phrase(c *nft.Chain, p phrase) {
	needs := []feature{chain}
	for i, e := range p {
		if s := a.setOf(e); s != nil {
			a.set(s)
			needs = append(needs, setFeature(s))
		}
		if i < len(p)-1 {
			needs = append(needs, expressionFeature(a.table.Family, e))
		}
	}
	a.batch.AddRules(a.there(), &nft.Chain{Name: c.Name, Rules: []nft.Rule{{Exprs: p}}})
	a.question(expressionFeature(a.table.Family, p[len(p)-1]), needs...)
}

// setOf returns the set that an expression names.
func (a *asker) setOf(e expr.Any) *nft.Set {
	var name string
	switch e := e.(type) {
	case *expr.Lookup:
		name = e.SetName
	case *expr.Dynset:
		name = e.SetName
	}
	for _, s := range a.table.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// answers are those by which the kernel says that it hasn't something. What else it may say, such as that there is no memory, tells
// nothing about what it has.
var answers = []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EINVAL, unix.ENOPROTOOPT}

// blame finds the features because of which messages were refused: not those that need another one that is missing.
func blame(questions []question, refused []nft.Refused) ([]Missing, error) {
	var list []Missing
	lacking := map[nft.Family]map[string]bool{nft.IPv4: {}, nft.IPv6: {}}
	for _, q := range questions {
		i := slices.IndexFunc(refused, func(r nft.Refused) bool { return r.Message == q.message })
		if i < 0 {
			continue
		}
		err := refused[i].Err
		if !slices.ContainsFunc(answers, func(a error) bool { return errors.Is(err, a) }) {
			return nil, fmt.Errorf("probe the kernel for %s: %w", q.what.name, err)
		}
		lacks := lacking[q.family]
		if !slices.ContainsFunc(q.needs, func(f feature) bool { return lacks[f.name] }) && !lacks[q.what.name] {
			list = append(list, Missing{Family: q.family, feature: q.what, Err: err})
		}
		lacks[q.what.name] = true
	}
	return list, nil
}
