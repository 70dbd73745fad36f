package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Change is the difference between what was taken last and what is wanted now. It is applied in the order of its fields.
type Change struct {
	// Grown are sets that are about to fill up: they have to be made anew, with room for more elements.
	Grown []*nft.Set
	// Rules is set where the constant rules are others now: everything has to be written anew.
	Rules bool
	// Chains are chains to add, with their rules.
	Chains []Chain
	// Delete and Add are elements; one that is replaced stands in both.
	Delete, Add []*nft.Element
	// Unused are chains that nothing leads to any more.
	Unused []Chain
}

// Chain is a chain in the table of a family.
type Chain struct {
	Family model.Family
	*nft.Chain
}

// Empty reports whether there is nothing to do.
func (c *Change) Empty() bool {
	return !c.Rules && len(c.Grown)+len(c.Chains)+len(c.Delete)+len(c.Add)+len(c.Unused) == 0
}

// delta collects what happens to elements between two calls of [Planner.Take]; what comes and goes again, or goes and
// comes back as it was, leaves no trace.
type delta struct {
	elements map[nft.ID]*transition
	order    []nft.ID
	chains   []classKey
	unused   []Chain
	grown    []*nft.Set
	rules    bool
}

// transition is an element as it was, and as it is; nil where there is none.
type transition struct{ was, is *nft.Element }

func newDelta() *delta { return &delta{elements: map[nft.ID]*transition{}} }

func (d *delta) put(e *nft.Element) {
	id := e.ID()
	s := d.elements[id]
	if s == nil {
		s = &transition{}
		d.elements[id] = s
		d.order = append(d.order, id)
	}
	s.is = e
}

func (d *delta) remove(e *nft.Element) {
	id := e.ID()
	s := d.elements[id]
	if s == nil {
		s = &transition{was: e}
		d.elements[id] = s
		d.order = append(d.order, id)
	}
	s.is = nil
}

// addChain notes that a class needs its chain, which may be about to be given up.
func (d *delta) addChain(key classKey) {
	stays := func(c Chain) bool { return c.Family == key.family && c.Name == key.chain() }
	if i := slices.IndexFunc(d.unused, stays); i >= 0 {
		d.unused = slices.Delete(d.unused, i, i+1)
		return
	}
	d.chains = append(d.chains, key)
}

// removeChain notes that a class's chain is to be given up, unless it was never made.
func (d *delta) removeChain(c Chain, key classKey) {
	if i := slices.Index(d.chains, key); i >= 0 {
		d.chains = slices.Delete(d.chains, i, i+1)
		return
	}
	d.unused = append(d.unused, c)
}

// elementsChanged lists the elements to delete and to add, in the order in which they were first touched.
func (d *delta) elementsChanged() (del, add []*nft.Element) {
	for _, id := range d.order {
		s := d.elements[id]
		if s.was != nil && s.is != nil && *s.was == *s.is {
			continue
		}
		if s.was != nil {
			del = append(del, s.was)
		}
		if s.is != nil {
			add = append(add, s.is)
		}
	}
	return del, add
}
