package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Rules are the part of a plan that depends on no Service: the sets, the constant chains, and the chains of classes.
type Rules struct {
	options Options
	layouts [2]*layout
	// tables have the sets and the constant chains.
	tables [2]*nft.Table
	// changed is called after a change.
	changed func()
}

// Rules returns the rules of the plan. Only [Rules.SetLocalPods] changes them.
func (p *Planner) Rules() *Rules { return &p.rules }

// build builds the constant part of a family's table.
func (r *Rules) build(f inet.Family) { r.tables[f] = r.layouts[f].table(&r.options) }

// SetLocalPods changes the property by which the rules of a family recognise traffic of this node's pods.
func (r *Rules) SetLocalPods(f inet.Family, pods LocalPods) {
	if r.layouts[f] == nil || r.options.LocalPods[f] == pods {
		return
	}
	r.options.LocalPods[f] = pods
	r.build(f)
	r.changed()
}

// ClassChain returns a chain of a class in a family's table, by the name of the chain. It returns nil for the name of
// any other chain.
func (r *Rules) ClassChain(f inet.Family, name string) *nft.Chain {
	c, ok := classOf(f, name)
	if !ok || c.kind.direct() && !r.options.DirectReturn {
		return nil
	}
	return r.layouts[f].classChain(&r.options, c)
}

// LeadsToClass reports whether an element of a dispatch map is one that leads to the chain of a class, and that is in
// the plan only while a Service needs it.
func (r *Rules) LeadsToClass(e *nft.Element) bool {
	if !e.Set.Verdict {
		return false
	}
	l := r.layouts[e.Set.Family]
	st := step(slices.Index(l.dispatch[:], e.Set))
	c, ok := classOf(l.family, e.Chain)
	if !ok {
		c, ok = classOfConstant(e.Chain)
	}
	if !ok || c.isFixed(st) {
		return false
	}
	if c.kind.hasRoute() {
		c.of = uint8(e.Key.AsUint32()&routeBits>>8) - 1 // the chain can be of several routes
	}
	return l.dispatchElement(st, c) == *e
}

// Samples returns the tables without elements, with sample chains for every kind of class. They have all forms of rules
// that the program may send to the kernel.
func (r *Rules) Samples() []*nft.Table {
	var list []*nft.Table
	for _, f := range r.options.Families {
		l, t := r.layouts[f], *r.tables[f]
		t.Chains = slices.Clip(t.Chains)
		for _, c := range l.samples(&r.options) {
			t.Chains = append(t.Chains, l.classChain(&r.options, c))
		}
		list = append(list, &t)
	}
	return list
}

// samples returns classes of every kind whose chains are in the plan on demand. If the kind has a table: a single slot,
// an exact table, a rounded table, and, unless the kernel lacks jhash, one for each kind of hash.
func (l *layout) samples(o *Options) []class {
	var list []class
	tables := []table{{size: 1}, {size: 3}, {size: tableSize(exactSlots + 1)}}
	if o.Lacks.Hash == "" {
		tables = append(tables,
			table{balance.Sizes[0], selector{key: balance.Flow}},
			table{balance.Sizes[0], selector{balance.Source, uint8(l.family.AddrLen() * 8)}},
			table{balance.Sizes[0], selector{balance.Source, balance.Lengths[0]}})
	}
	for k := kindReject; k < kindEnd; k++ {
		for of := range k.classes() {
			switch c := (class{kind: k, of: of}); {
			case !k.onDemand(), k.direct() && !o.DirectReturn, k == kindTimeouts && o.Lacks.Timeouts != "":
			case kinds[k].by == unnumbered:
				list = append(list, c)
			case kinds[k].by == byTimeout:
				c.timeout = 1
				list = append(list, c)
			default:
				for _, c.table = range tables {
					list = append(list, c)
				}
			}
		}
	}
	return list
}
