// Package want decides which elements the tables have, from what each of several owners wants.
//
// In: the old and the new elements of an owner; votes for and against what several owners may want.
// Out: the elements to remove and to add; the change from unwanted to wanted, or back.
// Never: knows what an owner is; sends anything to the kernel.
package want

import "slices"

// nearby is the distance up to which [Difference] finds a moved element.
const nearby = 16

// Difference returns the elements that only old has, and the elements that only now has. Few elements may be new or
// missing between those that both lists have, which are in the same order. An element that has moved further than
// that may be in both results.
func Difference[E comparable](old, now []E) (removed, added []E) {
	if len(old) == 0 {
		return nil, now
	}
	for _, e := range now {
		i := slices.Index(old[:min(len(old), nearby)], e)
		if i < 0 {
			added = append(added, e)
			continue
		}
		removed = append(removed, old[:i]...)
		old = old[i+1:]
	}
	return append(removed, old...), added
}

// Table has the votes for and against each thing that several owners may want. A thing is wanted while there is at
// least one vote for it, and none against it.
type Table[K comparable] map[K]votes

type votes struct{ pro, contra int32 }

func (v votes) wanted() bool { return v.pro > 0 && v.contra == 0 }

// Change is the effect of a vote.
type Change int8

// The effects of a vote: the thing is wanted from now on, as much as before, or not any more.
const (
	Unwanted Change = iota - 1
	Same
	Wanted
)

// Vote adds votes for and against a thing, or withdraws them if the numbers are negative. To replace the votes of an
// owner, add the new ones before you withdraw the old ones; otherwise, a thing that stays wanted changes twice.
func (t Table[K]) Vote(k K, pro, contra int32) Change {
	before := t[k]
	after := votes{before.pro + pro, before.contra + contra}
	if after == (votes{}) {
		delete(t, k)
	} else {
		t[k] = after
	}
	switch {
	case after.wanted() && !before.wanted():
		return Wanted
	case before.wanted() && !after.wanted():
		return Unwanted
	}
	return Same
}

// Has reports whether a thing is wanted.
func (t Table[K]) Has(k K) bool { return t[k].wanted() }

// Each calls f for each wanted thing.
func (t Table[K]) Each(f func(K)) {
	for k, v := range t {
		if v.wanted() {
			f(k)
		}
	}
}
