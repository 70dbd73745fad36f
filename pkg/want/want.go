// Package want counts the owners of elements that several owners may want.
//
// In: votes for and against elements without data.
// Out: the change of an element from unwanted to wanted, or back.
// Never: knows what an owner is; sends anything to the kernel.
package want

import "github.com/kube-nftproxy/kube-nftproxy/pkg/nft"

// Table has the votes for and against each element. An element is wanted while there is at least one vote for it, and
// none against it. The zero value is not ready for use, see [New].
type Table struct{ votes map[nft.ID]votes }

type votes struct {
	pro, contra int32
	// chain and jump are the verdict of an element of a verdict map. All votes for an element have the same.
	chain string
	jump  bool
}

func (v votes) wanted() bool { return v.pro > 0 && v.contra == 0 }

// New returns an empty table.
func New() *Table { return &Table{map[nft.ID]votes{}} }

// Change is the effect of a vote.
type Change int8

// The effects of a vote: the element is wanted from now on, as much as before, or not any more.
const (
	Unwanted Change = iota - 1
	Same
	Wanted
)

// Vote adds votes for and against an element, or withdraws them if the numbers are negative. To replace the votes of an
// owner, add the new ones before you withdraw the old ones; otherwise, an element that stays wanted changes twice.
func (t *Table) Vote(e *nft.Element, pro, contra int32) Change {
	id := e.ID()
	before := t.votes[id]
	after := votes{before.pro + pro, before.contra + contra, e.Chain, e.Jump}
	if after.pro == 0 && after.contra == 0 {
		delete(t.votes, id)
	} else {
		t.votes[id] = after
	}
	switch {
	case after.wanted() && !before.wanted():
		return Wanted
	case before.wanted() && !after.wanted():
		return Unwanted
	}
	return Same
}

// Has reports whether an element is wanted.
func (t *Table) Has(id nft.ID) bool { return t.votes[id].wanted() }

// Each calls f for each wanted element. f must not keep it.
func (t *Table) Each(f func(*nft.Element)) {
	var e nft.Element
	for id, v := range t.votes {
		if v.wanted() {
			e = nft.Element{
				Set: id.Set, Key: id.Key, KeyEnd: id.KeyEnd, IntervalEnd: id.IntervalEnd, Chain: v.chain, Jump: v.jump,
			}
			f(&e)
		}
	}
}

// Len returns the number of elements with votes.
func (t *Table) Len() int { return len(t.votes) }
