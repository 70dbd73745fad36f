package plan

import (
	"container/heap"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// contenders are the claims to one key.
type contenders struct {
	winner claim
	// losers has all claims except the winner's; nil if there are none.
	losers *losingClaims
}

// losingClaims holds claims in a heap. So the planner finds the next winner without a search, although any tenant can add claims to an address.
type losingClaims struct {
	// waiting is the heap. A withdrawn claim stays in it for a while.
	waiting claimHeap
	// present are the Services whose claims are not withdrawn.
	present map[*service]struct{}
}

// claimHeap implements heap.Interface, with the next winner first.
type claimHeap []claim

func (c claimHeap) Len() int           { return len(c) }
func (c claimHeap) Less(i, j int) bool { return c[i].compare(&c[j]) < 0 }
func (c claimHeap) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *claimHeap) Push(x any)        { *c = append(*c, x.(claim)) }
func (c *claimHeap) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	(*c)[last] = claim{}
	*c = (*c)[:last]
	return x
}

func (l *losingClaims) has(s *service) bool {
	if l == nil {
		return false
	}
	_, present := l.present[s]
	return present
}

func (l *losingClaims) add(c claim) {
	l.present[c.service] = struct{}{}
	heap.Push(&l.waiting, c)
}

// remove withdraws the claim of a Service. Once most of the heap is withdrawn, remove rebuilds it.
func (l *losingClaims) remove(s *service) {
	delete(l.present, s)
	if len(l.waiting) > 2*len(l.present)+manyPorts {
		l.waiting = slices.DeleteFunc(l.waiting, func(c claim) bool { return !l.has(c.service) })
		heap.Init(&l.waiting)
	}
}

// next removes and returns the claim that wins over all others.
func (l *losingClaims) next() claim {
	for {
		c := heap.Pop(&l.waiting).(claim)
		if l.has(c.service) {
			delete(l.present, c.service)
			return c
		}
	}
}

// Conflict is a frontend that a Service claims and another Service has. Winner has no name if the address of the
// frontend is the cluster IP of another Service, which does not claim the port.
type Conflict struct {
	Key           model.Key
	Kind          model.Kind
	Winner, Loser model.PortName
}

// WinnerText returns the name of the winner, or the words for a Service that has the address as its cluster IP.
func (c *Conflict) WinnerText() string {
	if c.Winner == (model.PortName{}) {
		return "the Service with this cluster IP"
	}
	return c.Winner.String()
}

// contest is a key with its winner before a change; the zero claim if there was none.
type contest struct {
	key    model.Key
	winner claim
}

// noteWinners adds each key that the earlier or the new form of a Service claims to contests, with its present winner.
// Call it before the claims of the earlier form are withdrawn.
func (p *Planner) noteWinners(old, now *service) {
	p.contests = p.contests[:0]
	note := func(k model.Key, c *contenders) {
		winner := c.winner
		if p.isBeaten(k) {
			winner = claim{}
		}
		p.contests = append(p.contests, contest{k, winner})
	}
	old.eachFrontend(func(c claim) {
		contenders := p.claims[c.frontend.Key]
		note(c.frontend.Key, &contenders)
	})
	now.eachFrontend(func(c claim) {
		contenders := p.claims[c.frontend.Key]
		if !contenders.has(old) {
			note(c.frontend.Key, &contenders)
		}
	})
	p.noteOverlaps()
}

// decide finds the winners of the contests after now has replaced the Service old, and replaces the elements of each
// key with another winner. It also records the frontends whose flows may be stale. contested is true if there were
// conflicts before.
func (p *Planner) decide(old, now *service, contested bool) {
	p.settleRanges(now)
	p.settlePorts()
	contested = contested || p.Conflicts() > 0
	for i := range p.contests {
		c := &p.contests[i]
		list, is := p.claims[c.key], p.winner(c.key)
		if c.winner.service != nil || is.service != nil {
			p.touchFlows(c.key)
			if is.service != nil || p.begun {
				p.noteDeleted(c.key, is.service == nil)
			}
		}
		if c.winner != is {
			p.replace(func(to emit) { p.frontendElements(c.winner, to) }, func(to emit) { p.frontendElements(is, to) })
		}
		p.noteParties(c.winner.service, is.service, old, now, contested)
		if c.winner.service != is.service {
			p.noteLosers(list.losers)
		}
	}
	clear(p.contests)
}

// has reports whether a Service is among the contenders.
func (c *contenders) has(s *service) bool {
	return s != nil && (c.winner.service == s || c.losers.has(s))
}

func (s *service) eachFrontend(f func(claim)) {
	if s == nil {
		return
	}
	for _, p := range s.ports {
		for i := range p.Frontends {
			f(claim{s, p, &p.Frontends[i]})
		}
	}
}

func (p *Planner) withdraw(s *service) {
	s.eachFrontend(func(c claim) {
		list := p.claims[c.frontend.Key]
		switch {
		case !list.has(s):
			return
		case list.winner.service != s:
			list.losers.remove(s)
		case list.losers == nil:
			delete(p.claims, c.frontend.Key)
			p.claimPlace(c.frontend.Key, false)
			return
		default:
			list.winner = list.losers.next()
		}
		p.lostClaims--
		if len(list.losers.present) == 0 {
			list.losers = nil
		}
		p.claims[c.frontend.Key] = list
	})
}

func (p *Planner) claim(s *service) {
	s.eachFrontend(func(c claim) {
		list, claimed := p.claims[c.frontend.Key]
		switch {
		case !claimed:
			p.claims[c.frontend.Key] = contenders{winner: c}
			p.claimPlace(c.frontend.Key, true)
			return
		case list.has(s):
			return // another port of this Service claims the key already
		case list.losers == nil:
			list.losers = &losingClaims{present: map[*service]struct{}{}}
		}
		loser := c
		if c.compare(&list.winner) < 0 {
			loser, list.winner = list.winner, c
		}
		list.losers.add(loser)
		p.lostClaims++
		p.claims[c.frontend.Key] = list
	})
}

// noteParties records the Services whose lost claims may have changed. now has replaced the Service old, and the winner
// of a key has changed from was to is. contested is false if there are no conflicts, and were none before.
func (p *Planner) noteParties(was, is, old, now *service, contested bool) {
	if !contested && (was == nil || was == old) && (is == nil || is == now) {
		return
	}
	for _, s := range []*service{was, is, old, now} {
		if s != nil {
			p.changedLosers[s.name] = struct{}{}
		}
	}
}

// noteLosers records up to mostConflicts Services that lost a key to the earlier winner and now lose it to the new winner.
func (p *Planner) noteLosers(l *losingClaims) {
	if l == nil {
		return
	}
	n := 0
	for s := range l.present {
		if n++; n > mostConflicts {
			return
		}
		p.changedLosers[s.name] = struct{}{}
	}
}

// mostLosers is the number of Services that one call of [Planner.TakeLosers] returns: thousands of Services may claim one address.
const mostLosers = 100

// TakeLosers returns up to mostLosers Services whose lost claims may have changed since the call that last returned them. more reports whether
// further Services wait for the next call.
func (p *Planner) TakeLosers() (names []types.NamespacedName, more bool) {
	for name := range p.changedLosers {
		if len(names) == mostLosers {
			break
		}
		names = append(names, name)
		delete(p.changedLosers, name)
	}
	slices.SortFunc(names, model.CompareNames)
	return names, len(p.changedLosers) > 0
}

// mostConflicts limits the conflicts that are listed for one Service, and the losers that are recorded when the winner of a key changes.
const mostConflicts = 20

// ConflictsOf returns the first mostConflicts frontends that the named Service claims and another Service has, and the
// number of all. For a range of ports, these are also the single ports in it that another Service has. Call it when no
// Service waits to be planned: while an address moves between Services, both claim it.
func (p *Planner) ConflictsOf(name types.NamespacedName) (list []Conflict, all int) {
	s := p.services[name]
	add := func(k model.Key, of claim, winner claim) {
		c := Conflict{Key: k, Kind: of.frontend.Kind, Loser: of.port.Name}
		if winner.service != nil {
			c.Winner = winner.port.Name
		}
		list = append(list, c)
	}
	s.eachFrontend(func(c claim) {
		k := c.frontend.Key
		if winner := p.owner(k); winner.service != s {
			if all++; all <= mostConflicts {
				add(k, c, winner)
			}
			return
		}
		ports := p.places.inFrontOf[k]
		all += len(ports)
		if room := mostConflicts - len(list); room > 0 {
			for _, port := range firstKeys(ports, room) {
				add(port, c, p.winner(port))
			}
		}
	})
	return list, all
}

// firstKeys returns the n smallest keys of a set, sorted.
func firstKeys(set map[model.Key]struct{}, n int) (first []model.Key) {
	for k := range set {
		i, _ := slices.BinarySearchFunc(first, k, compareKeys)
		if i < n {
			first = slices.Insert(first, i, k)
			first = first[:min(n, len(first))]
		}
	}
	return first
}

// Conflicts returns the number of conflicts of all Services.
func (p *Planner) Conflicts() int { return p.lostClaims + len(p.places.beaten) + len(p.places.fronts) }
