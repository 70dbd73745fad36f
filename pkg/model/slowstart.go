package model

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// fullShare is the [Share] of an endpoint that is not starting. The share of a starting endpoint rises from 1 to
// fullShare, by 1 in each step.
const fullShare = 10

// Starts are the starting endpoints of a Service with slow start: those with less than their full weight. It is
// immutable.
type Starts struct {
	ports map[groupKey]portStarts
	// next is the time of the next step; zero if no endpoint is starting.
	next time.Time
}

// portStarts are the starting endpoints of one service port.
type portStarts struct {
	// list is sorted by endpoint.
	list []start
	// known are the ready endpoints, sorted. since is the time at which the service port got its first ready endpoint;
	// zero if this was before the first observation.
	known []netip.AddrPort
	since time.Time
}

// start is a starting endpoint, which became ready at the time since.
type start struct {
	endpoint netip.AddrPort
	since    time.Time
	// share is from 1 to fullShare-1.
	share uint8
}

// Share is the current share of a starting endpoint of a service port: the part of its weight that counts, in units of
// 1/[fullShare].
type Share struct {
	Port     string         `json:"port,omitempty"`
	Protocol inet.Protocol  `json:"protocol"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Share    uint8          `json:"share"`
}

// Next returns the time at which the share of an endpoint rises next. It is zero if no endpoint is starting. Starts may
// be nil.
func (s *Starts) Next() time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.next
}

// Shares returns the starting endpoints; those of each service port are sorted.
func (s *Starts) Shares() (list []Share) {
	for key, p := range s.ports {
		for _, e := range p.list {
			list = append(list, Share{key.name, key.protocol, e.endpoint, e.share})
		}
	}
	return list
}

// StartsOf returns starting endpoints with given shares. The list is in the order of [Starts.Shares].
func StartsOf(list []Share) *Starts {
	s := &Starts{ports: map[groupKey]portStarts{}}
	for _, e := range list {
		key := groupKey{family: inet.FamilyOf(e.Endpoint.Addr()), protocol: e.Protocol, name: e.Port}
		p := s.ports[key]
		p.list = append(p.list, start{endpoint: e.Endpoint, share: e.Share})
		s.ports[key] = p
	}
	return s
}

// setStarts sets the starting endpoints, and the part of its weight that each of them does not have yet.
func (b *builder) setStarts() {
	b.out.Starts = b.opts.Starts
	if b.opts.Now != nil {
		b.observe(*b.opts.Now)
	}
	if b.out.Starts == nil {
		return
	}
	for _, g := range b.groups {
		for _, s := range b.out.Starts.ports[g.groupKey].list {
			if at, found := search(g.endpoints, s.endpoint); found {
				g.endpoints[at].missing = fullShare - s.share
			}
		}
	}
}

// search returns the index of an address and port in sorted endpoints, and whether it is there.
func search(list []endpoint, a netip.AddrPort) (at int, found bool) {
	return slices.BinarySearchFunc(list, a, func(e endpoint, a netip.AddrPort) int { return e.Compare(a) })
}

// observe sets the starting endpoints. An endpoint starts when it becomes ready. If a service port has had endpoints
// for less than the time of slow start, all its endpoints are new, and none starts.
func (b *builder) observe(now time.Time) {
	earlier := b.opts.Starts
	s := &Starts{ports: make(map[groupKey]portStarts, len(b.out.Ports))}
	for i := range b.out.Ports {
		g := &b.groups[i]
		p := portStarts{known: pick(g.endpoints, func(e *endpoint) bool { return e.has(ready) })}
		var before portStarts
		if earlier != nil {
			before = earlier.ports[g.groupKey]
		}
		switch isOld := earlier == nil && b.out.Created.Add(b.slow).Before(now); {
		case now.IsZero(), len(before.known) == 0 && isOld: // the endpoints are older than this observation
		case len(before.known) == 0:
			p.since = now
		default:
			p.since = before.since
			p.list = b.starting(&before, p.known, now)
		}
		for _, e := range p.list {
			if at := e.since.Add(b.riseTime(e.share)); s.next.IsZero() || at.Before(s.next) {
				s.next = at
			}
		}
		s.ports[g.groupKey] = p
	}
	b.out.Starts = s
}

// starting returns the ready endpoints that are starting.
func (b *builder) starting(before *portStarts, known []netip.AddrPort, now time.Time) (list []start) {
	earlier, starts := before.known, before.list
	for _, e := range known {
		for len(earlier) > 0 && earlier[0].Compare(e) < 0 {
			earlier = earlier[1:]
		}
		for len(starts) > 0 && starts[0].endpoint.Compare(e) < 0 {
			starts = starts[1:]
		}
		switch {
		case len(starts) > 0 && starts[0].endpoint == e:
			if share := b.shareAfter(now.Sub(starts[0].since)); share < fullShare {
				list = append(list, start{e, starts[0].since, share})
			}
		case (len(earlier) == 0 || earlier[0] != e) && now.Sub(before.since) >= b.slow:
			list = append(list, start{e, now, 1})
		}
	}
	return list
}

// shareAfter returns the share of an endpoint that started some time ago: the greatest share whose time
// ([builder.riseTime]) has passed.
func (b *builder) shareAfter(passed time.Duration) uint8 {
	share := uint8(1)
	for share < fullShare && passed >= b.riseTime(share) {
		share++
	}
	return share
}

// riseTime returns the time from the start of an endpoint until its share rises above the given one. All steps have the
// same length.
func (b *builder) riseTime(share uint8) time.Duration {
	return b.slow * time.Duration(share) / (fullShare - 1)
}

// slowed multiplies reduced weights, which may be nil, by shares. With the random algorithm, it does not reduce the
// products. An endpoint then has [fullShare] slots for each unit of its weight, so that each step changes only a few
// slots.
func slowed(weights []uint16, shares []uint8, key balance.Key) []uint16 {
	divisor := 1
	if len(weights) > 0 && int(slices.Max(weights))*fullShare > math.MaxUint16 {
		divisor = fullShare
	}
	out := make([]uint16, len(shares))
	for i, share := range shares {
		out[i] = uint16((weightAt(weights, i)*int(share) + divisor - 1) / divisor)
	}
	if key == balance.Chance {
		return out
	}
	return balance.Reduce(out)
}

// weightAt returns one of the weights, which are nil if all are 1.
func weightAt(weights []uint16, i int) int {
	if weights == nil {
		return 1
	}
	return int(weights[i])
}
