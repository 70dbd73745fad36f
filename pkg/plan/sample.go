package plan

import (
	"slices"

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
