package plan

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

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
	// byKey has the claims to each key, the best one first.
	byKey map[model.Key][]claim
	// lost counts the claims that lost to another Service.
	lost int
	// rangesAt are the claimed ranges of ports by place.
	rangesAt groups[model.AddrProtocol, model.Key]
	// hostIPs are the claimed keys of host ports with a hostIP, by the node port with the same number.
	hostIPs groups[model.Key, model.Key]
	places  places
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
		byKey: map[model.Key][]claim{}, rangesAt: groups[model.AddrProtocol, model.Key]{},
		hostIPs: groups[model.Key, model.Key]{}, places: newPlaces(),
		isClusterIP: isClusterIP, losers: map[types.NamespacedName]struct{}{},
	}
}

// winner returns the claim that has a key; the zero claim if no Service has it.
func (cs *claims) winner(k model.Key) claim {
	if _, beaten := cs.places.beaten[k]; beaten {
		return claim{}
	}
	return cs.best(k)
}

// best returns the best claim to a key; the zero claim if there is none.
func (cs *claims) best(k model.Key) claim {
	if list := cs.byKey[k]; len(list) > 0 {
		return list[0]
	}
	return claim{}
}

// sharePlaces reports whether there are Services that may share a place with another one. In a cluster without port
// ranges, load-balancer IPs and external IPs, there are none.
func (cs *claims) sharePlaces() bool { return len(cs.rangesAt)+len(cs.places.sharing) > 0 }

// elsewhere reports whether a claim is to an address other than the Service's cluster IP, and not to a node port.
func (c claim) elsewhere() bool { return c.frontend.Addr.IsValid() && !c.frontend.AtClusterIP() }

// replace replaces the claims of a Service, and returns all keys that it claims or claimed, and other keys whose winner
// may have changed.
func (cs *claims) replace(old, now *service) []contest {
	contested, shared, list := cs.conflicts() > 0, cs.sharePlaces(), cs.contests(nil, old, now)
	old.eachFrontend(cs.withdraw)
	now.eachFrontend(cs.claim)
	cs.decide(list, now, contested, shared)
	return list
}

// contests returns each key that one of the versions of a Service claims, with its present winner, and the host ports
// that compete with a node port in them. at, if not nil, has the only addresses of these keys.
func (cs *claims) contests(at map[netip.Addr]struct{}, versions ...*service) (list []contest) {
	known := map[model.Key]bool{}
	add := func(k model.Key) {
		if !known[k] {
			known[k] = true
			list = append(list, contest{key: k, was: cs.winner(k)})
		}
	}
	for _, s := range versions {
		s.eachFrontend(func(c claim) {
			if _, wanted := at[c.frontend.Addr]; wanted || at == nil {
				add(c.frontend.Key)
			}
		})
	}
	for _, c := range list {
		for other := range cs.hostIPs[c.key] {
			add(other)
		}
	}
	return list
}

// decide finds the winners of contests after the Service now has changed, except those of overlapping ranges. contested
// is true if there were conflicts before, and shared if there were Services that may share a place.
func (cs *claims) decide(list []contest, now *service, contested, shared bool) {
	if shared || cs.sharePlaces() {
		for _, c := range list {
			cs.settle(c.key)
		}
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

// find returns the index of a claim in the sorted claims to its key, and whether its Service is there. The search is
// binary, so the costs of thousands of Services that claim the same keys do not multiply.
func find(list []claim, c claim) (at int, found bool) {
	if len(list) > 0 && list[0].service == c.service { // almost always
		return 0, true
	}
	return slices.BinarySearchFunc(list, c, claim.compare)
}

func (cs *claims) withdraw(c claim) {
	k := c.frontend.Key
	if c.elsewhere() {
		cs.places.sharing.remove(k.Addr, c.service)
		delete(cs.places.unsettled, c.service)
	}
	switch i, found := find(cs.byKey[k], c); {
	case !found: // another port of the Service has claimed the key
	case len(cs.byKey[k]) > 1:
		cs.byKey[k] = slices.Delete(cs.byKey[k], i, i+1)
		cs.lost--
	default:
		delete(cs.byKey, k)
		if len(cs.hostIPs) > 0 {
			cs.hostIPs.remove(k.NodePort(), k)
		}
		if k.Last != 0 {
			cs.rangesAt.remove(k.AddrProtocol(), k)
		}
	}
}

func (cs *claims) claim(c claim) {
	k := c.frontend.Key
	if c.elsewhere() {
		cs.places.sharing.add(k.Addr, c.service)
	}
	if atHostIP(c.frontend) {
		cs.hostIPs.add(k.NodePort(), k)
	}
	i, found := find(cs.byKey[k], c)
	switch {
	case found: // another port of the Service claims the key already
		return
	case len(cs.byKey[k]) > 0:
		cs.lost++
	case k.Last != 0:
		cs.rangesAt.add(k.AddrProtocol(), k)
	}
	cs.byKey[k] = slices.Insert(cs.byKey[k], i, c)
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
		all := cs.byKey[c.key]
		for _, l := range all[:min(len(all), 1+mostConflicts)] {
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

// Loser is a Service whose lost claims may have changed. Cost is its cost.
type Loser struct {
	types.NamespacedName
	Cost int
}

// TakeLosers returns up to mostLosers Services whose lost claims may have changed since the call that last returned
// them. more reports whether further Services wait for the next call.
func (cs Conflicts) TakeLosers() (list []Loser, more bool) {
	losers := cs.planner.claims.losers
	for name := range losers {
		if len(list) == mostLosers {
			break
		}
		list = append(list, Loser{name, cs.planner.Service(name).Cost()})
		delete(losers, name)
	}
	slices.SortFunc(list, func(a, b Loser) int { return model.CompareNames(a.NamespacedName, b.NamespacedName) })
	return list, len(losers) > 0
}

// Settle decides about overlapping ranges, and again about single ports that a change of other Services may concern:
// this change added or removed a range, or a cluster IP. Call it after [Planner.Set] and before the elements are
// committed. It decides about the ports of whole Services, until there are most or more of them, and reports whether
// further Services are left for the next call. Until then, the earlier decisions stand.
func (cs Conflicts) Settle(most int) (more bool) {
	p := cs.planner
	places := &p.claims.places
	for at := range places.unsettledRanges {
		delete(places.unsettledRanges, at)
		p.change(&noService, &noService, p.claims.settleRanges(at))
	}
	for n := 0; len(places.unsettled) > 0 && n < most; {
		contests, steps := p.claims.settleOne()
		n += steps
		p.change(&noService, &noService, contests)
	}
	return len(places.unsettled) > 0
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
		winner := claims.best(k)
		if by, beaten := claims.places.beaten[k]; beaten { // the zero claim for the cluster IP of another Service
			winner = claims.best(by)
		}
		if winner.service != s {
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

// groups has the values of each key.
type groups[K, V comparable] map[K]map[V]struct{}

func (g groups[K, V]) add(k K, v V) {
	if g[k] == nil {
		g[k] = map[V]struct{}{}
	}
	g[k][v] = struct{}{}
}

func (g groups[K, V]) remove(k K, v V) {
	if delete(g[k], v); len(g[k]) == 0 {
		delete(g, k)
	}
}
