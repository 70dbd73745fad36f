package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Kernel validates a batch without a commit.
type Kernel interface {
	Check(*nft.Batch) ([]nft.Refused, error)
}

// Run validates everything that the tables use, each feature once for each family, in one batch. After an error, the
// missing features are unknown.
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

// question is a message that the kernel accepts if it has a feature and the features that the message also needs.
type question struct {
	message int
	family  inet.Family
	what    feature
	// needs are these other features.
	needs []feature
}

// asker writes the questions about one table into a batch.
type asker struct {
	batch     *nft.Batch
	table     *nft.Table
	questions []question
	// sets are the names of the sets in the batch, asked the names of the features in it.
	sets, asked map[string]bool
}

// tableName is the name of the tables in the batch, which are never committed.
const tableName = "kube-nftproxy-probe"

// Features that every question needs.
var (
	table = feature{name: "tables"}
	chain = feature{name: "chains"}
)

func (a *asker) ask() {
	a.batch.AddDormantTable(a.table.Family, tableName)
	a.question(table)
	rules := &nft.Chain{Name: "rules"}
	a.batch.AddChain(a.ownTable(), rules)
	a.question(chain, table)
	a.baseChains()
	for _, s := range a.table.Sets {
		if a.isNew(setFeature(s)) {
			a.set(s)
		}
	}
	for _, c := range a.table.Chains {
		if (c.Timeouts != nft.Timeouts{}) && a.isNew(timeoutsFeature) {
			a.batch.AddTimeouts(a.ownTable(), c.Name, c.Timeouts)
			a.question(timeoutsFeature, table)
		}
	}
	for _, p := range a.phrases() {
		a.phrase(rules, p)
	}
}

// ownTable returns the table of the batch.
func (a *asker) ownTable() *nft.Table { return &nft.Table{Family: a.table.Family, Name: tableName} }

func (a *asker) isNew(f feature) bool {
	known := a.asked[f.name]
	a.asked[f.name] = true
	return !known
}

func (a *asker) question(what feature, needs ...feature) {
	a.questions = append(a.questions, question{a.batch.Messages(), a.table.Family, what, needs})
}

// baseChains adds a base chain of each type.
func (a *asker) baseChains() {
	for _, c := range a.table.Chains {
		if !c.IsBase() {
			continue
		}
		if f := chainFeature(c); a.isNew(f) {
			a.batch.AddChain(a.ownTable(), &nft.Chain{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority})
			a.question(f, table)
		}
	}
}

// set adds a set with a small size, unless the batch has it.
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

// phrase is an expression with the expressions before it that load the registers that it reads.
type phrase []expr.Any

// phrases returns one phrase for each kind of expression in the table: the one with the fewest other expressions that a
// kernel may lack. Expressions before the last one of a phrase get their own phrases earlier.
func (a *asker) phrases() []phrase {
	best := map[string]phrase{}
	for _, c := range a.table.Chains {
		for _, r := range c.Rules {
			for i, e := range r.Exprs {
				if _, ok := e.(*expr.Verdict); ok {
					break // the chain does not exist; every kernel has verdicts
				}
				p := phrase(r.Exprs[:i+1])
				name := p.name(a.table.Family)
				if b, known := best[name]; !known || a.compare(p, b) < 0 {
					best[name] = p
				}
			}
		}
	}
	list := make([]phrase, 0, len(best))
	for _, name := range slices.Sorted(maps.Keys(best)) {
		list = append(list, best[name])
	}
	slices.SortStableFunc(list, a.compare)
	return list
}

// compare puts phrases with fewer modules first, then shorter ones.
func (a *asker) compare(p, q phrase) int {
	f := a.table.Family
	return cmp.Or(cmp.Compare(p.modules(f), q.modules(f)), cmp.Compare(len(p), len(q)))
}

// name returns the name of the feature that a phrase tests.
func (p phrase) name(f inet.Family) string { return expressionFeature(f, p[len(p)-1]).name }

// modules returns the number of expressions that may be modules.
func (p phrase) modules(f inet.Family) (n int) {
	for _, e := range p {
		if expressionFeature(f, e).module != "" {
			n++
		}
	}
	return n
}

// phrase adds a rule that tests the last expression of a phrase.
func (a *asker) phrase(c *nft.Chain, p phrase) {
	needs := []feature{chain}
	if _, refers := p[len(p)-1].(*expr.Objref); refers {
		needs = append(needs, timeoutsFeature)
	}
	for i, e := range p {
		if s := a.setOf(e); s != nil {
			a.set(s)
			needs = append(needs, setFeature(s))
		}
		if i < len(p)-1 {
			needs = append(needs, expressionFeature(a.table.Family, e))
		}
	}
	a.batch.AddRules(a.ownTable(), &nft.Chain{Name: c.Name, Rules: []nft.Rule{{Exprs: p}}})
	a.question(expressionFeature(a.table.Family, p[len(p)-1]), needs...)
}

// setOf returns the set that an expression refers to.
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

// answers are the kernel's errors for a missing feature. Other errors, such as a lack of memory, say nothing about
// features.
var answers = []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EINVAL,
	unix.ENOPROTOOPT}

// blame returns the missing features behind the rejected messages, without features whose messages need another missing
// one.
func blame(questions []question, refused []nft.Refused) ([]Missing, error) {
	var list []Missing
	lacking := map[inet.Family]map[string]bool{inet.IPv4: {}, inet.IPv6: {}}
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
