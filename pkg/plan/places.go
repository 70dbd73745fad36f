package plan

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The best claim to a key is not always programmed, because an address and a range of ports belong to their Service:
//
//   - A cluster IP belongs to its Service alone. Other Services get no port of the address, used or unused.
//   - A range belongs to the Service with the best claim to it. A range that overlaps the range of a better claim is not programmed, and neither is a
//     single port of another Service in the range of a better claim. If the claim to the single port is better, the rules find the port first, and the
//     rest of the range stays.
//
// If two Services have the same cluster IP, which the API server prevents, the best claim to each key is programmed,
// and single ports take precedence over ranges.
//
// A change of one Service can so decide about thousands of frontends of other Services. [Planner.Set] decides about the
// frontends of its Service and about overlapping ranges, whose number is limited. [Planner.Settle] decides about the
// rest in parts.

// places has the decisions that depend on other keys at the same address.
type places struct {
	// beaten has the claimed keys that are not programmed, with the range of a better claim. The zero key stands for
	// the cluster IP of another Service.
	beaten map[model.Key]model.Key
	// won has the ranges of each place (an address and a protocol) that are programmed, by port. They do not overlap.
	won map[model.AddrProtocol][]claim
	// fronts has the programmed single ports in a range of another Service, with the range. inFrontOf has the same by
	// range.
	fronts    map[model.Key]model.Key
	inFrontOf map[model.Key]map[model.Key]struct{}
	// sharing has the Services with an address that is not their cluster IP. unsettled are the Services for
	// [Planner.Settle].
	sharing   map[netip.Addr][]*service
	unsettled map[*service]struct{}
}

func newPlaces() places {
	return places{
		beaten: map[model.Key]model.Key{}, won: map[model.AddrProtocol][]claim{}, fronts: map[model.Key]model.Key{},
		inFrontOf: map[model.Key]map[model.Key]struct{}{}, sharing: map[netip.Addr][]*service{}, unsettled: map[*service]struct{}{},
	}
}

// replaceElsewhere replaces a Service in the lists of Services that share an address. Either may be nil.
func (p *Planner) replaceElsewhere(old, now *service) {
	if old != nil {
		delete(p.places.unsettled, old)
	}
	if now != nil {
		now.listElsewhere()
	}
	if old != nil {
		for _, a := range old.elsewhere {
			list := p.places.sharing[a]
			i := slices.Index(list, old)
			if list = slices.Delete(list, i, i+1); len(list) == 0 {
				delete(p.places.sharing, a)
			} else {
				p.places.sharing[a] = list
			}
		}
	}
	if now != nil {
		for _, a := range now.elsewhere {
			p.places.sharing[a] = append(p.places.sharing[a], now)
		}
	}
}

// listElsewhere sets the list elsewhere of a Service.
func (s *service) listElsewhere() {
	var known map[netip.Addr]struct{}
	s.eachFrontend(func(c claim) {
		a := c.frontend.Addr
		if _, again := known[a]; again || !c.elsewhere() {
			return
		}
		if known == nil {
			known = map[netip.Addr]struct{}{}
		}
		known[a] = struct{}{}
		s.elsewhere = append(s.elsewhere, a)
	})
}

// elsewhere reports whether a claim is to an address other than the Service's cluster IP, and not to a node port.
func (c *claim) elsewhere() bool { return c.frontend.Addr.IsValid() && !c.frontend.AtClusterIP() }

// unsettle leaves the frontends of the Services that share an address to [Planner.Settle], except those of one Service.
func (p *Planner) unsettle(a netip.Addr, except *service) {
	for _, s := range p.places.sharing[a] {
		if s != except {
			p.places.unsettled[s] = struct{}{}
		}
	}
}

// Settle decides again about frontends that a change of other Services may concern: this change added or removed a
// range, or a cluster IP. It decides about the frontends of whole Services, until there are most or more of them, and
// reports whether further Services are left for the next call. Until then, the earlier decisions stand.
func (p *Planner) Settle(most int) (more bool) {
	for n := 0; len(p.places.unsettled) > 0 && n < most; {
		for s := range p.places.unsettled {
			delete(p.places.unsettled, s)
			p.noteWinners(s, s)
			n += len(p.contests)
			p.decide(s, s, p.Conflicts() > 0)
			break
		}
	}
	return len(p.places.unsettled) > 0
}

// isBeaten reports whether the best claim to a key is not programmed.
func (p *Planner) isBeaten(k model.Key) bool {
	_, beaten := p.places.beaten[k]
	return beaten
}

// winner returns the claim that has a key; the zero claim if no Service has it.
func (p *Planner) winner(k model.Key) claim {
	if p.isBeaten(k) {
		return claim{}
	}
	return p.claims[k].winner
}

// owner returns the claim that has a key, or has a range that contains or overlaps it. It returns the zero claim if the
// address is the cluster IP of a Service that does not claim the key.
func (p *Planner) owner(k model.Key) claim {
	if by, beaten := p.places.beaten[k]; beaten {
		return p.claims[by].winner
	}
	return p.claims[k].winner
}

// isOthersClusterIP reports whether a claim is to the cluster IP of another Service.
func (p *Planner) isOthersClusterIP(c claim) bool {
	return c.elsewhere() &&
		p.shared.Has(nft.ID{Set: p.layouts[c.port.Family].clusterIPs, Key: nft.Value{}.Addr(c.frontend.Addr)})
}

// settleRanges decides which ranges of the contests are programmed, after the Service now has changed.
func (p *Planner) settleRanges(now *service) {
	var settled map[model.AddrProtocol]bool
	for i := range p.contests {
		k := p.contests[i].key
		at := k.AddrProtocol()
		if k.Last == 0 || settled[at] {
			continue
		}
		if settled == nil {
			settled = map[model.AddrProtocol]bool{}
		}
		settled[at] = true
		p.settlePlace(at, now)
	}
	for i := range p.contests { // no Service claims the range any more
		if k := p.contests[i].key; k.Last != 0 && p.claims[k].winner.service == nil {
			delete(p.places.beaten, k)
		}
	}
}

// settlePlace decides which ranges of a place are programmed: the best claim first, each if it overlaps none before it.
func (p *Planner) settlePlace(at model.AddrProtocol, now *service) {
	list := make([]claim, 0, len(p.rangesAt[at]))
	for k := range p.rangesAt[at] {
		list = append(list, p.claims[k].winner)
	}
	slices.SortFunc(list, func(a, b claim) int {
		if c := a.compare(&b); c != 0 {
			return c
		}
		return compareKeys(a.frontend.Key, b.frontend.Key)
	})
	won := make([]claim, 0, len(list))
	for _, c := range list {
		i := indexOfRange(won, c.frontend.Port)
		switch {
		case p.isOthersClusterIP(c):
			p.setBeaten(c.frontend.Key, model.Key{}, true)
		case i < len(won) && won[i].frontend.Port <= c.frontend.Last:
			p.setBeaten(c.frontend.Key, won[i].frontend.Key, true)
		default:
			p.setBeaten(c.frontend.Key, model.Key{}, false)
			won = slices.Insert(won, i, c)
		}
	}
	before := p.places.won[at]
	if len(won) == 0 {
		delete(p.places.won, at)
	} else {
		p.places.won[at] = won
	}
	if !slices.EqualFunc(before, won, func(a, b claim) bool { return a.frontend.Key == b.frontend.Key && a.compare(&b) == 0 }) {
		p.unsettle(at.Addr, now)
	}
}

// indexOfRange returns the index of the first range that ends at a port or after it.
func indexOfRange(list []claim, port uint16) int {
	i, _ := slices.BinarySearchFunc(list, port, func(c claim, port uint16) int { return int(c.frontend.Last) - int(port) })
	return i
}

// rangeAt returns the claim to the programmed range that contains a single port; the zero claim if there is none.
func (p *Planner) rangeAt(k model.Key) claim {
	list := p.places.won[k.AddrProtocol()]
	if i := indexOfRange(list, k.Port); i < len(list) && list[i].frontend.Port <= k.Port {
		return list[i]
	}
	return claim{}
}

// settlePorts decides which single ports of the contests are programmed.
func (p *Planner) settlePorts() {
	if at := &p.places; len(at.sharing) == 0 && len(at.beaten) == 0 && len(at.fronts) == 0 {
		return // usual: a cluster without load-balancer IPs and external IPs
	}
	for i := range p.contests {
		if k := p.contests[i].key; k.Last == 0 && k.Addr.IsValid() {
			p.settlePort(k)
		}
	}
}

func (p *Planner) settlePort(k model.Key) {
	best := p.claims[k].winner
	var by, front model.Key
	beaten := false
	if best.service != nil && best.elsewhere() {
		in := p.rangeAt(k)
		switch {
		case p.isOthersClusterIP(best):
			beaten = true
		case in.service == nil || in.service == best.service:
		case in.compare(&best) < 0:
			by, beaten = in.frontend.Key, true
		default:
			front = in.frontend.Key
		}
	}
	p.setBeaten(k, by, beaten)
	p.setFront(k, front)
}

// setBeaten records whether the best claim to a key is not programmed, and the range that is programmed instead.
func (p *Planner) setBeaten(k, by model.Key, beaten bool) {
	if old, was := p.places.beaten[k]; was == beaten && old == by {
		return
	}
	if beaten {
		p.places.beaten[k] = by
	} else {
		delete(p.places.beaten, k)
	}
	p.noteLoser(k)
}

// setFront records the range of another Service that contains a programmed single port; the zero key if there is none.
func (p *Planner) setFront(k, r model.Key) {
	old := p.places.fronts[k]
	if old == r {
		return
	}
	if old != (model.Key{}) {
		delete(p.places.fronts, k)
		if delete(p.places.inFrontOf[old], k); len(p.places.inFrontOf[old]) == 0 {
			delete(p.places.inFrontOf, old)
		}
		p.noteLoser(old)
	}
	if r == (model.Key{}) {
		return
	}
	p.places.fronts[k] = r
	if p.places.inFrontOf[r] == nil {
		p.places.inFrontOf[r] = map[model.Key]struct{}{}
	}
	p.places.inFrontOf[r][k] = struct{}{}
	p.noteLoser(r)
}

// noteLoser records the Service with the best claim to a key, if there is one: its conflicts have changed.
func (p *Planner) noteLoser(k model.Key) {
	if s := p.claims[k].winner.service; s != nil {
		p.changedLosers[s.name] = struct{}{}
	}
}
