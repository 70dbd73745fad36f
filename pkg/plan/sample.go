package plan

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Samples returns tables without elements of the form to which options lead, with one chain of every kind of class: all that may
// ever be asked of the kernel.
func Samples(o Options) []*nft.Table {
	var list []*nft.Table
	for _, f := range o.Families {
		list = append(list, newLayout(f, &o).sample(&o))
	}
	return list
}

func (l *layout) sample(o *Options) *nft.Table {
	t := l.table(o)
	for _, c := range l.samples() {
		t.Chains = append(t.Chains, l.classChain(o, c))
	}
	return t
}

// HasForm reports whether an element of the set [StateSet] says that its table has the form of a sample.
func HasForm(state *nft.Element, sample *nft.Table) bool {
	found, err := ReadState(state)
	return err == nil && found.Layout == nft.Fingerprint(sample)
}
