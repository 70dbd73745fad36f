// Package room shares quantities of the node among namespaces, so that no group of namespaces can take a quantity away
// from the others.
//
// In: the limit of a quantity; requests of namespaces.
// Out: a grant, or the reason why there is none.
// Never: knows the quantity, takes back a grant, reads a clock.
package room

import "math"

// A Room is a quantity that the node has once, such as the numbers of service ports. It has these properties:
//
//   - Possession: a grant stays until its owner gives it back. A change that needs no more than before always succeeds.
//   - Guarantee: each namespace owns a part, see [Room.Own]. Half of the limit is reserved for these parts. What other
//     namespaces take above their own parts is never in this half.
//   - Share: a namespace can take at most a sixteenth of the other half above its own part.
//
// So 16 namespaces must act together to use up the shared half, and the parts of other namespaces are then still free.
// A Room is not safe for concurrent use.
type Room struct {
	limit int
	taken map[string]int
	// total is the sum of taken, and extra the sum of what namespaces have taken above their own parts.
	total, extra int
}

// New returns an empty room of limit units.
func New(limit int) *Room { return &Room{limit: limit, taken: map[string]int{}} }

// shares is the number of namespaces that together can use up the shared half.
const shares = 16

// Limit returns the limit of all namespaces together.
func (r *Room) Limit() int { return r.limit }

// Own returns the part that each namespace owns. With a limit of L, it is the square root of L/8, rounded up, so that
// the reserved half is enough for about √(2L) namespaces that use their parts completely. Few namespaces do: usually,
// the half is enough for many more.
func (r *Room) Own() int {
	if r.limit < 1 {
		return 0
	}
	return int(math.Ceil(math.Sqrt(float64(r.limit) / 8))) //nolint:mnd // see above
}

// shared returns the half that is not reserved.
func (r *Room) shared() int { return r.limit / 2 } //nolint:mnd // a half

// Most returns the largest number of units that one namespace can take: its own part and a sixteenth of the shared
// half.
func (r *Room) Most() int { return min(r.Own()+(r.shared()+shares-1)/shares, r.limit) }

// Taken returns the units that a namespace has taken, Total those of all namespaces.
func (r *Room) Taken(namespace string) int { return r.taken[namespace] }

// Total returns the units that all namespaces have taken.
func (r *Room) Total() int { return r.total }

// Shortage is the reason why a room grants nothing.
type Shortage uint8

// The reasons. None stands for a grant.
const (
	None Shortage = iota
	// OfNamespace: the namespace has taken its part and its share.
	OfNamespace
	// OfNode: the shared half is used up, and the namespace has taken its part; or the whole room is used up.
	OfNode
)

// Lacks returns the reason why a namespace cannot have now units instead of was units that it has taken; None if it
// can.
func (r *Room) Lacks(namespace string, was, now int) Shortage {
	if now <= was {
		return None
	}
	before := r.taken[namespace]
	after := before - was + now
	extra := r.extra - r.above(before) + r.above(after)
	switch {
	case after > r.Most():
		return OfNamespace
	case r.total-was+now > r.limit, extra > r.shared():
		return OfNode
	}
	return None
}

// above returns the part of a namespace's units that is more than its own part.
func (r *Room) above(taken int) int { return max(0, taken-r.Own()) }

// Change grants now units to a namespace instead of was units that it has taken, unless the room lacks them.
func (r *Room) Change(namespace string, was, now int) Shortage {
	lacks := r.Lacks(namespace, was, now)
	if lacks == None {
		r.set(namespace, now-was)
	}
	return lacks
}

func (r *Room) set(namespace string, more int) {
	before := r.taken[namespace]
	after := before + more
	r.total += more
	r.extra += r.above(after) - r.above(before)
	if r.taken[namespace] = after; after == 0 {
		delete(r.taken, namespace)
	}
}
