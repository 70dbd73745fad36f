package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Change is the difference between what was taken last and what is wanted now. It is applied in the order of its fields.
type Change struct {
	// Rules is set where the constant rules are others now: everything has to be written anew.
	Rules bool
	// Chains are chains to add, with their rules.
	Chains []Chain
	// Delete and Add are elements; one that is replaced stands in both.
	Delete, Add []*nft.Element
	// Remade are sets to delete and to add again with all their elements: a set that is about to exceed its size, and one of ranges of which so
	// many change that this takes less time. None of Delete and Add is in them.
	Remade []Remade
	// Forget are elements to delete that packets may have added, or not.
	Forget []nft.Element
	// Unused are chains that nothing leads to any more.
	Unused []Chain
}

// Remade is a set to delete and to add again.
type Remade struct {
	Set *nft.Set
	// Chains are the chains whose rules use the set.
	Chains   []Chain
	Elements []nft.Element
}

// Chain is a chain in the table of a family.
type Chain struct {
	Family model.Family
	*nft.Chain
}

// Empty reports whether there is nothing to do.
func (c *Change) Empty() bool {
	return !c.Rules && len(c.Chains)+len(c.Remade)+len(c.Delete)+len(c.Add)+len(c.Unused) == 0
}

// delta collects what happens to elements between two calls of [Planner.Take]; what comes and goes again, or goes and
// comes back as it was, leaves no trace.
type delta struct {
	elements map[nft.ID]*transition
	order    []*transition
	// room is where the next transitions are made, some at a time.
	room   []transition
	chains []classKey
	unused []Chain
	grown  []*nft.Set
	rules  bool
}

// transition is an element as it was, and as it is; the zero element where there is none.
type transition struct{ was, is nft.Element }

func newDelta() *delta { return &delta{elements: map[nft.ID]*transition{}} }

// lasting is the number of elements for which memory is kept.
const lasting = 256

// expect makes room for a number of elements: growing step by step would take as long as what is done with them.
func (d *delta) expect(elements int) {
	if len(d.elements) == 0 && elements > lasting {
		d.elements, d.order = make(map[nft.ID]*transition, elements), make([]*transition, 0, elements)
	}
}

// reset forgets everything. The memory for elements serves again, unless there were very many.
func (d *delta) reset() {
	if len(d.order) > lasting {
		*d = *newDelta()
		return
	}
	clear(d.elements)
	clear(d.order)
	*d = delta{elements: d.elements, order: d.order[:0], room: d.room}
}

func (d *delta) put(e *nft.Element) { d.touch(e, nft.Element{}).is = *e }

func (d *delta) remove(e *nft.Element) { d.touch(e, *e).is = nft.Element{} }

// touch returns the transition of an element, which starts with what it was if this is the first time.
func (d *delta) touch(e *nft.Element, was nft.Element) *transition {
	id := e.ID()
	t := d.elements[id]
	if t == nil {
		const atOnce = 32
		if len(d.room) == 0 {
			d.room = make([]transition, atOnce)
		}
		t, d.room = &d.room[0], d.room[1:]
		t.was = was
		d.elements[id] = t
		d.order = append(d.order, t)
	}
	return t
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
	if len(d.order) == 0 {
		return nil, nil
	}
	del, add = make([]*nft.Element, 0, len(d.order)), make([]*nft.Element, 0, len(d.order))
	for _, t := range d.order {
		if t.was == t.is {
			continue
		}
		if t.was.Set != nil {
			del = append(del, &t.was)
		}
		if t.is.Set != nil {
			add = append(add, &t.is)
		}
	}
	return del, add
}
