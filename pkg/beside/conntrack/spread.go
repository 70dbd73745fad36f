package conntrack

import (
	"cmp"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// roundsPerShare is the number of rounds in which all connections of a service port may end: half of them per
	// minute.
	roundsPerShare = 12
	// mostPerRound is the largest number of connections of the node that end in one round.
	mostPerRound = 1000
	// evenRounds is the number of rounds without an endpoint above its share after which the rest stays. Clients of
	// terminated connections return in this time.
	evenRounds = 6
	// tolerance is the ratio to its share up to which an endpoint keeps its connections.
	tolerance = 1.1
	// offersPerEnd is the number of candidates for each connection that may end. Most connections are not silent until
	// the next round, because TCP keepalive of many programs sends a probe every 15 s.
	offersPerEnd = 10
)

// spread are the connections of one service port in one family while they are spread over more endpoints. In each
// round, one pass over the kernel's table counts them. In the same pass, silent connections end that the previous pass
// has offered.
type spread struct {
	port   *model.ServicePort
	silent time.Duration
	began  time.Time
	// size is the part of the room that the service port has.
	size int
	// stopped is set when the endpoints change, also during a pass. No connection ends afterwards.
	stopped atomic.Bool

	// Only one of the listener and the pass uses the following fields, in turns.
	//
	// part is the part of the connections that may end, and left the number of those; negative before the first count.
	// ends is the number of those that may end in the next pass.
	part              float64
	left, ends, ended int
	// even is the number of rounds since an endpoint had more than its share.
	even int
	// counted is true if the last pass has seen each flow once.
	counted bool
	// endpoints has the connections of each endpoint, with the indexes of port.Cluster.
	endpoints []tally
	offered   map[flowID]offer
}

// tally has the connections to one endpoint.
type tally struct {
	count int
	// above is the number of connections above the share that may end in the next pass, and wanted that of offers.
	above, wanted int
	offers        []offer
}

type flowID struct {
	id     uint32
	source netip.AddrPort
}

// offer is a connection that may end if it stays silent.
type offer struct {
	flowID
	expires uint32
	at      time.Time
}

// partToEnd returns the number of connections that must end, divided by the number n of all, after the number of
// endpoints has grown. Then an earlier endpoint has close to its share, if the clients connect to random endpoints.
//
// If the clients of a part p connect again, an earlier endpoint has n/before·(1-p) + n·p/now connections. This p makes
// it n/now times a factor between 1 and tolerance, because chance may return more clients. Of the connections that end,
// one in now gets the same endpoint with its next segment, and continues.
func partToEnd(before, now int) float64 {
	ratio := float64(now) / float64(before)
	if ratio <= tolerance {
		return 0
	}
	p := (ratio - (1+tolerance)/2) / (ratio - 1) //nolint:mnd // the middle
	return p * float64(now) / float64(now-1)
}

// visit counts a flow to the service port, and reports whether it ends now.
func (s *spread) visit(f *Flow, now time.Time) bool {
	i, found := slices.BinarySearchFunc(s.port.Cluster, f.Server, netip.AddrPort.Compare)
	if !found || !f.DNAT || !f.Replied || !f.Established || s.stopped.Load() {
		return false
	}
	e := &s.endpoints[i]
	e.count++
	if f.Unacknowledged || f.Expires == 0 || e.wanted == 0 {
		return false
	}
	id := flowID{f.ID, f.Source}
	o, earlier := s.offered[id]
	silent := time.Duration(int64(o.expires)-int64(f.Expires)) * time.Second
	past := now.Sub(o.at)
	switch {
	case !earlier, silent < past-time.Second, silent > past+time.Second:
		o = offer{id, f.Expires, now} // a packet has renewed the entry
	case silent >= s.silent && s.ends > 0 && e.above > 0:
		s.ends--
		e.above--
		e.count--
		s.left--
		s.ended++
		return true
	}
	if e.offers = append(e.offers, o); len(e.offers) >= 2*e.wanted {
		e.cut()
	}
	return false
}

// cut keeps the wanted number of offers. Entries that expire earlier are silent for longer.
func (t *tally) cut() {
	slices.SortFunc(t.offers, func(a, b offer) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.expires, b.expires))
	})
	t.offers = t.offers[:min(len(t.offers), t.wanted)]
}

// plan selects the number of connections that end in the next pass, and reports false if none will end any more. most
// is the largest number, which is the service port's part of the node's limit.
func (s *spread) plan(most float64) bool {
	if !s.counted {
		return true
	}
	count, surplus, weight := 0, 0.0, 0.0
	for i := range s.endpoints {
		count += s.endpoints[i].count
		weight += s.weight(i)
	}
	above := make([]float64, len(s.endpoints))
	for i := range s.endpoints {
		e := &s.endpoints[i]
		above[i] = float64(e.count) - tolerance*float64(count)*s.weight(i)/weight
		e.count, e.above = 0, int(math.Ceil(max(0, above[i])))
		surplus += max(0, above[i])
	}
	if s.left < 0 {
		s.left = roundAtRandom(float64(count) * s.part)
	}
	if s.even++; surplus > 0 {
		s.even = 0
	}
	if s.left == 0 || s.even == evenRounds {
		return false
	}
	rate := min(surplus, float64(count)/roundsPerShare, float64(s.left), most)
	s.ends = roundAtRandom(rate)
	for i := range s.endpoints {
		e := &s.endpoints[i]
		if e.wanted = 0; e.above > 0 {
			e.wanted = 1 + int(offersPerEnd*rate*above[i]/surplus)
		}
	}
	return true
}

func (s *spread) weight(i int) float64 {
	if s.port.ClusterWeights == nil {
		return 1
	}
	return float64(s.port.ClusterWeights[i])
}

// take makes the offers of the last pass those of the next one.
func (s *spread) take(counted bool) {
	s.counted, s.offered = counted, map[flowID]offer{}
	for i := range s.endpoints {
		e := &s.endpoints[i]
		e.cut()
		for _, o := range e.offers {
			s.offered[o.flowID] = o
		}
		if e.offers = nil; !counted {
			e.count = 0
		}
	}
}

// roundAtRandom returns one of the two integers next to x. Its mean is x, so that many nodes with few connections each
// end the right number together.
func roundAtRandom(x float64) int { return int(x + rand.Float64()) } //nolint:gosec // not a secret

// round is one pass for all service ports whose connections are being spread.
type round struct {
	// desired finds the frontend of a flow, and spreads has the service port of each frontend.
	desired *Desired
	spreads map[model.Key]*spread
	all     []*spread
}

// visit does the same as [spread.visit] for the flow's service port.
func (r *round) visit(f *Flow) bool {
	if f.Protocol != inet.TCP {
		return false
	}
	k, known := r.desired.FrontendOf(f)
	s := r.spreads[k]
	return known && s != nil && s.visit(f, time.Now())
}
