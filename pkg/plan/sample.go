package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

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
// an exact table, a rounded table, and, unless WithoutHash is set, one for each kind of hash.
func (l *layout) samples(o *Options) []class {
	var list []class
	tables := []table{{size: 1}, {size: 3}, {size: tableSize(exactSlots + 1)}}
	if !o.WithoutHash {
		tables = append(tables,
			table{balance.Sizes[0], selector{key: balance.Flow}},
			table{balance.Sizes[0], selector{balance.Source, uint8(l.family.AddrLen() * 8)}},
			table{balance.Sizes[0], selector{balance.Source, balance.Lengths[0]}})
	}
	for k := kindReject; k < kindEnd; k++ {
		for of := range k.classes() {
			switch c := (class{kind: k, of: of}); {
			case !k.onDemand(), k.direct() && !o.DirectReturn:
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
