package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// contenders are the claims to one key.
type contenders struct {
	winner claim
	// losers are all other claims, sorted: the next winner is first.
	losers []claim
}

// has reports whether a Service is among the contenders.
func (c *contenders) has(s *service) bool { return c.winner.service == s || c.lost(s) >= 0 }

// lost returns the index of the claim of a Service among the losers; -1 if there is none. The losers are sorted, so the
// costs of thousands of Services that claim the same keys do not multiply.
func (c *contenders) lost(s *service) int {
	for rank := range ranks {
		i, found := slices.BinarySearchFunc(c.losers, s, func(l claim, s *service) int {
			return cmp.Or(cmp.Compare(l.rank(), rank), l.service.compareAge(s))
		})
		if found && c.losers[i].service == s {
			return i
		}
	}
	return -1
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

// claims decide which Service has each key. They do not know elements.
type claims struct {
	byKey map[model.Key]contenders
	// lost counts the claims that lost to another Service.
	lost int
	// rangesAt are the claimed ranges of ports. singlesAt are all other claimed keys; nil before the first range.
	rangesAt, singlesAt keysByPlace
	places              places
	// isClusterIP reports whether an address of a family is a cluster IP of a Service.
	isClusterIP func(inet.Family, netip.Addr) bool
	// losers are the Services whose lost claims may have changed since the last [Conflicts.TakeLosers].
	losers map[types.NamespacedName]struct{}
}

// contest is a key with its winners before and after a change; the zero claim stands for none.
type contest struct {
	key     model.Key
	was, is claim
}

func newClaims(isClusterIP func(inet.Family, netip.Addr) bool) *claims {
	return &claims{
		byKey: map[model.Key]contenders{}, rangesAt: keysByPlace{}, places: newPlaces(), isClusterIP: isClusterIP,
		losers: map[types.NamespacedName]struct{}{},
	}
}

// replace replaces the claims of a Service, and returns all keys that it claims or claimed, and other keys whose winner
// may have changed.
func (cs *claims) replace(old, now *service) []contest {
	contested, shared, list := cs.conflicts() > 0, cs.sharePlaces(), cs.contests(old, now)
	cs.withdraw(old)
	cs.claim(now)
	cs.decide(list, now, contested, shared)
	return list
}

// contests returns each key that the old or the new version of a Service claims, with its present winner, and the
// ranges that may overlap these keys.
func (cs *claims) contests(old, now *service) (list []contest) {
	note := func(k model.Key) { list = append(list, contest{key: k, was: cs.winner(k)}) }
	old.eachFrontend(func(c claim) { note(c.frontend.Key) })
	now.eachFrontend(func(c claim) {
		k := c.frontend.Key
		if claims := cs.byKey[k]; !claims.has(old) {
			note(k)
		}
	})
	if len(cs.rangesAt) > 0 {
		list = cs.addOverlaps(list)
	}
	return list
}

// decide finds the winners of contests after the Service now has changed. contested is true if there were conflicts
// before, and shared if there were Services that may share a place.
func (cs *claims) decide(list []contest, now *service, contested, shared bool) {
	if shared || cs.sharePlaces() {
		cs.settleRanges(list, now)
		cs.settlePorts(list)
	}
	contested = contested || cs.conflicts() > 0
	for i := range list {
		c := &list[i]
		if c.is = cs.winner(c.key); contested {
			cs.noteParties(c, now)
		}
	}
}

func (s *service) eachFrontend(f func(claim)) {
	for _, p := range s.ports {
		for i := range p.Frontends {
			f(claim{s, p, &p.Frontends[i]})
		}
	}
}

func (cs *claims) withdraw(s *service) {
	s.eachFrontend(func(c claim) {
		if c.elsewhere() {
			cs.places.unshare(c.frontend.Addr, s)
		}
		list := cs.byKey[c.frontend.Key]
		switch {
		case !list.has(s):
			return
		case list.winner.service != s:
			i := list.lost(s)
			list.losers = slices.Delete(list.losers, i, i+1)
		case len(list.losers) == 0:
			delete(cs.byKey, c.frontend.Key)
			if cs.singlesAt != nil {
				cs.claimPlace(c.frontend.Key, false)
			}
			return
		default:
			list.winner = list.losers[0]
			list.losers = slices.Delete(list.losers, 0, 1)
		}
		cs.lost--
		cs.byKey[c.frontend.Key] = list
	})
}

func (cs *claims) claim(s *service) {
	s.eachFrontend(func(c claim) {
		if c.elsewhere() {
			cs.places.share(c.frontend.Addr, s)
		}
		list, claimed := cs.byKey[c.frontend.Key]
		switch {
		case !claimed:
			cs.byKey[c.frontend.Key] = contenders{winner: c}
			if c.frontend.Last != 0 || cs.singlesAt != nil {
				cs.claimPlace(c.frontend.Key, true)
			}
			return
		case list.has(s):
			return // another port of this Service claims the key already
		}
		loser := c
		if c.compare(&list.winner) < 0 {
			loser, list.winner = list.winner, c
		}
		i, _ := slices.BinarySearchFunc(list.losers, loser, func(l, c claim) int { return l.compare(&c) })
		list.losers = slices.Insert(list.losers, i, loser)
		cs.lost++
		cs.byKey[c.frontend.Key] = list
	})
}

// noteParties records the Services whose lost claims may have changed with a contest, after the change of the Service
// now. If the winner has changed, these are also up to mostConflicts others that claim the key.
func (cs *claims) noteParties(c *contest, now *service) {
	for _, s := range []*service{c.was.service, c.is.service, now} {
		if s != nil {
			cs.losers[s.name] = struct{}{}
		}
	}
	if c.was.service != c.is.service {
		losers := cs.byKey[c.key].losers
		for _, l := range losers[:min(len(losers), mostConflicts)] {
			cs.losers[l.service.name] = struct{}{}
		}
	}
}

// mostLosers is the number of Services that one call of [Conflicts.TakeLosers] returns: thousands of Services may claim
// one address.
const mostLosers = 100

// Conflicts are the frontends that a Service claims and another Service has.
type Conflicts struct{ planner *Planner }

// Conflicts returns the conflicts between the planned Services.
func (p *Planner) Conflicts() Conflicts { return Conflicts{p} }

// Loser is a Service whose lost claims may have changed. Elements is the number of its elements.
type Loser struct {
	types.NamespacedName
	Elements int
}

// TakeLosers returns up to mostLosers Services whose lost claims may have changed since the call that last returned
// them. more reports whether further Services wait for the next call.
func (cs Conflicts) TakeLosers() (list []Loser, more bool) {
	losers := cs.planner.claims.losers
	for name := range losers {
		if len(list) == mostLosers {
			break
		}
		list = append(list, Loser{name, cs.planner.Service(name).Elements()})
		delete(losers, name)
	}
	slices.SortFunc(list, func(a, b Loser) int { return model.CompareNames(a.NamespacedName, b.NamespacedName) })
	return list, len(losers) > 0
}

// Settle decides again about frontends that a change of other Services may concern: this change added or removed a
// range, or a cluster IP. It decides about the frontends of whole Services, until there are most or more of them, and
// reports whether further Services are left for the next call. Until then, the earlier decisions stand.
func (cs Conflicts) Settle(most int) (more bool) {
	p := cs.planner
	unsettled := p.claims.places.unsettled
	for n := 0; len(unsettled) > 0 && n < most; {
		contests := p.claims.settleOne()
		n += len(contests)
		p.change(&noService, &noService, contests)
	}
	return len(unsettled) > 0
}

// mostConflicts limits the conflicts that are listed for one Service, and the losers that are recorded when the winner
// of a key changes.
const mostConflicts = 20

// Of returns the first mostConflicts frontends that the named Service claims and another Service has, and the
// number of all. For a range of ports, these are also the single ports in it that another Service has. Call it when no
// Service waits to be planned: while an address moves between Services, both claim it.
func (cs Conflicts) Of(name types.NamespacedName) (list []Conflict, all int) {
	s, claims := cs.planner.Service(name).service, cs.planner.claims
	add := func(k model.Key, of claim, winner claim) {
		c := Conflict{Key: k, Kind: of.frontend.Kind, Loser: of.port.Name}
		if winner.service != nil {
			c.Winner = winner.port.Name
		}
		list = append(list, c)
	}
	s.eachFrontend(func(c claim) {
		k := c.frontend.Key
		if winner := claims.owner(k); winner.service != s {
			if all++; all <= mostConflicts {
				add(k, c, winner)
			}
			return
		}
		ports := claims.places.inFrontOf[k]
		all += len(ports)
		if room := mostConflicts - len(list); room > 0 {
			for _, port := range firstKeys(ports, room) {
				add(port, c, claims.winner(port))
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

// conflicts returns the number of frontends that a Service claims and another Service has.
func (cs *claims) conflicts() int { return cs.lost + len(cs.places.beaten) + len(cs.places.fronts) }
