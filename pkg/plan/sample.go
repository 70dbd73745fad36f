package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Samples returns the tables without elements, with sample chains for every kind of class. They have all forms of rules that the program may send
// to the kernel.
func (p *Planner) Samples() []*nft.Table {
	var list []*nft.Table
	for _, f := range p.options.Families {
		l, t := p.layouts[f], *p.tables[f]
		t.Chains = slices.Clip(t.Chains)
		for _, c := range l.samples(p.options.WithoutHash) {
			t.Chains = append(t.Chains, l.classChain(&p.options, c))
		}
		list = append(list, &t)
	}
	return list
}

// samples returns classes of every kind whose chains are in the plan on demand. If the kind has a table: a single slot, an exact table, a rounded table,
// and, unless withoutHash, one for each kind of hash.
func (l *layout) samples(withoutHash bool) []class {
	var list []class
	for k := kindSources; k < kindEnd; k++ {
		if k < kindAffinity {
			list = append(list, class{kind: k})
			continue
		}
		if k < kindDirect {
			list = append(list, class{kind: k, timeout: 1})
			continue
		}
		for _, t := range []table{{size: 1}, {size: 3}, {size: tableSize(exactSlots + 1)}, {balance.Sizes[0], selector{key: balance.Flow}},
			{balance.Sizes[0], selector{balance.Source, uint8(l.family.AddrLen() * 8)}}, {balance.Sizes[0], selector{balance.Source, balance.Lengths[0]}}} {
			if t.by == (selector{}) || !withoutHash {
				list = append(list, class{kind: k, table: t})
			}
		}
	}
	return list
}
