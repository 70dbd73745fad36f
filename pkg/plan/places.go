package plan

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// The best claim to a key is not always programmed, because an address and a range of ports belong to their Service:
//
//   - A cluster IP belongs to its Service alone. Other Services get no port of the address, used or unused.
//   - A range belongs to the Service with the best claim to it. A range that overlaps the range of a better claim is
//     not programmed, and neither is a single port of another Service in the range of a better claim. If the claim to
//     the single port is better, the rules find the port first, and the rest of the range stays.
//   - A host port with a hostIP competes with the node port of its number, by the age of their objects. If the node
//     port is older, the host port is not programmed. Otherwise the rules find the host port first.
//
// If two Services have the same cluster IP, which the API server prevents, the best claim to each key is programmed,
// and single ports take precedence over ranges.
//
// A change of one Service can so decide about thousands of frontends of other Services. claims.replace decides about
// the frontends of its Service. [Conflicts.Settle] decides about overlapping ranges, once for all changes at a place,
// and in parts about the single ports of other Services.

// places has the decisions that depend on other keys at the same address.
type places struct {
	// beaten has the claimed keys that are not programmed, with the range or the node port of a better claim. The zero
	// key stands for the cluster IP of another Service.
	beaten map[model.Key]model.Key
	// won has the ranges of each place (an address and a protocol) that are programmed, by port. They do not overlap.
	won map[model.AddrProtocol][]claim
	// fronts has the programmed single ports in a range of another Service, with the range, and the programmed host
	// ports with the node port. inFrontOf has the same by range and node port.
	fronts    map[model.Key]model.Key
	inFrontOf groups[model.Key, model.Key]
	// sharing has the Services with an address that is not their cluster IP.
	sharing groups[netip.Addr, *service]
	// unsettledRanges are the places for [Conflicts.Settle], and unsettled the Services, with the addresses of their
	// single ports.
	unsettledRanges map[model.AddrProtocol]struct{}
	unsettled       groups[*service, netip.Addr]
}

func newPlaces() places {
	return places{
		beaten: map[model.Key]model.Key{}, won: map[model.AddrProtocol][]claim{}, fronts: map[model.Key]model.Key{},
		inFrontOf: groups[model.Key, model.Key]{}, sharing: groups[netip.Addr, *service]{},
		unsettledRanges: map[model.AddrProtocol]struct{}{}, unsettled: groups[*service, netip.Addr]{},
	}
}

// unsettle leaves the ranges at an address, and the single ports of the Services that share it, to [Conflicts.Settle].
func (cs *claims) unsettle(a netip.Addr) {
	for _, protocol := range inet.Protocols {
		if at := (model.AddrProtocol{Addr: a, Protocol: protocol}); len(cs.rangesAt[at]) > 0 {
			cs.places.unsettledRanges[at] = struct{}{}
		}
	}
	cs.unsettlePorts(a)
}

func (cs *claims) unsettlePorts(a netip.Addr) {
	for s := range cs.places.sharing[a] {
		cs.places.unsettled.add(s, a)
	}
}

// settleOne decides again about the single ports of one Service that a change of another Service may concern. Each of
// its frontends is a step of the work.
func (cs *claims) settleOne() (list []contest, steps int) {
	for s, addresses := range cs.places.unsettled {
		delete(cs.places.unsettled, s)
		for _, p := range s.ports {
			steps += len(p.Frontends)
		}
		list = slices.DeleteFunc(cs.contests(addresses, s), func(c contest) bool { return c.key.Last != 0 })
		cs.decide(list, s, cs.conflicts() > 0, true)
		return list, steps
	}
	return nil, 0
}

// isOthersClusterIP reports whether a claim is to the cluster IP of another Service.
func (cs *claims) isOthersClusterIP(c claim) bool {
	return c.elsewhere() && cs.isClusterIP(c.port.Family, c.frontend.Addr)
}

// settle decides whether a single port is programmed, and leaves a range to [Conflicts.Settle].
func (cs *claims) settle(k model.Key) {
	if k.Last == 0 {
		if k.Addr.IsValid() {
			cs.settlePort(k)
		}
		return
	}
	cs.places.unsettledRanges[k.AddrProtocol()] = struct{}{}
	if cs.best(k).service == nil { // no Service claims the range any more
		delete(cs.places.beaten, k)
	}
}

// settleRanges decides which ranges of a place are programmed: the best claim first, each if it overlaps none before
// it.
func (cs *claims) settleRanges(at model.AddrProtocol) (list []contest) {
	ranges := make([]claim, 0, len(cs.rangesAt[at]))
	for k := range cs.rangesAt[at] {
		ranges = append(ranges, cs.best(k))
	}
	slices.SortFunc(ranges, func(a, b claim) int {
		if c := a.compare(b); c != 0 {
			return c
		}
		return compareKeys(a.frontend.Key, b.frontend.Key)
	})
	won := make([]claim, 0, len(ranges))
	for _, c := range ranges {
		k, by, beaten := c.frontend.Key, model.Key{}, cs.isOthersClusterIP(c)
		if i := indexOfRange(won, k.Port); !beaten {
			if beaten = i < len(won) && won[i].frontend.Port <= k.Last; beaten {
				by = won[i].frontend.Key
			} else {
				won = slices.Insert(won, i, c)
			}
		}
		decided := contest{key: k, was: cs.winner(k)}
		cs.setBeaten(k, by, beaten)
		if decided.is = cs.winner(k); decided.was != decided.is {
			cs.noteParties(&decided, c.service)
			list = append(list, decided)
		}
	}
	before := cs.places.won[at]
	if len(won) == 0 {
		delete(cs.places.won, at)
	} else {
		cs.places.won[at] = won
	}
	same := func(a, b claim) bool { return a.frontend.Key == b.frontend.Key && a.compare(b) == 0 }
	if !slices.EqualFunc(before, won, same) {
		cs.unsettlePorts(at.Addr)
	}
	return list
}

// indexOfRange returns the index of the first range that ends at a port or after it.
func indexOfRange(list []claim, port uint16) int {
	end := func(c claim, port uint16) int { return int(c.frontend.Last) - int(port) }
	i, _ := slices.BinarySearchFunc(list, port, end)
	return i
}

// rangeAt returns the claim to the programmed range that contains a single port; the zero claim if there is none.
func (cs *claims) rangeAt(k model.Key) claim {
	list := cs.places.won[k.AddrProtocol()]
	if i := indexOfRange(list, k.Port); i < len(list) && list[i].frontend.Port <= k.Port {
		return cs.best(list[i].frontend.Key) // won has the version of its Service as of the last decision
	}
	return claim{}
}

func (cs *claims) settlePort(k model.Key) {
	best := cs.best(k)
	var by, front model.Key
	beaten := false
	if best.service != nil && best.elsewhere() {
		in, order := cs.rangeAt(k), claim.compare
		if atHostIP(best.frontend) {
			in, order = cs.best(k.NodePort()), func(a, b claim) int { return a.service.compareAge(b.service) }
		}
		switch {
		case cs.isOthersClusterIP(best):
			beaten = true
		case in.service == nil || in.service == best.service:
		case order(in, best) < 0:
			by, beaten = in.frontend.Key, true
		default:
			front = in.frontend.Key
		}
	}
	cs.setBeaten(k, by, beaten)
	cs.setFront(k, front)
}

// setBeaten records whether the best claim to a key is not programmed, and the range that is programmed instead.
func (cs *claims) setBeaten(k, by model.Key, beaten bool) {
	if old, was := cs.places.beaten[k]; was == beaten && old == by {
		return
	}
	if beaten {
		cs.places.beaten[k] = by
	} else {
		delete(cs.places.beaten, k)
	}
	cs.noteLoser(k)
}

// setFront records the range of another Service that contains a programmed single port, or the node port of another
// Service that a host port precedes; the zero key if there is none.
func (cs *claims) setFront(k, r model.Key) {
	old := cs.places.fronts[k]
	if old == r {
		return
	}
	if old != (model.Key{}) {
		delete(cs.places.fronts, k)
		cs.places.inFrontOf.remove(old, k)
		cs.noteLoser(old)
	}
	if r == (model.Key{}) {
		return
	}
	cs.places.fronts[k] = r
	cs.places.inFrontOf.add(r, k)
	cs.noteLoser(r)
}

// noteLoser records the Service with the best claim to a key, if there is one: its conflicts have changed.
func (cs *claims) noteLoser(k model.Key) {
	if s := cs.best(k).service; s != nil {
		cs.losers[s.name] = struct{}{}
	}
}
