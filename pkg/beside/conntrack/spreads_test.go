package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// life is the number of seconds after which the kernel of a crowd deletes an entry without packets.
const life = 86_400

// A crowd is a kernel's table with the connections of clients that connect to a random endpoint after a reset. It runs
// in a bubble of synctest.
type crowd struct {
	*Spreads
	mu    sync.Mutex
	list  []*member
	now   []netip.AddrPort // the endpoints
	most  int              // the largest number that ended in a pass
	reads int
	next  uint32
	// repeats makes each read show all flows twice, as after an interruption.
	repeats bool
	failure error
}

// member is a connection. every is the time between its segments, or 0 for an idle one.
type member struct {
	Flow
	last         time.Time
	every        time.Duration
	cuts, resets int
}

func endpoint(n int) netip.AddrPort { return netip.AddrPortFrom(at(n), 8080) }

// crowdOf returns a listener that knows the Service with endpoints 1 to n.
func crowdOf(t *testing.T, n int) *crowd {
	c := &crowd{}
	c.Spreads = NewSpreads(SpreadsConfig{
		Planner: plan.New(plan.Options{Families: inet.Families[:1]}), Now: time.Now,
		Open: func() (Table, error) { return c, c.failure }, Metrics: nothing{},
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	c.scale(n)
	return c
}

type nothing struct{}

func (nothing) FlowsDeleted(inet.Family, time.Duration, int) {}
func (nothing) FlowsSearched(inet.Family, error)             {}

// scale gives the Service endpoints 1 to n.
func (c *crowd) scale(n int) {
	var list []netip.AddrPort
	for i := range n {
		list = append(list, endpoint(i+1))
	}
	c.set(web, list, nil)
}

// set plans the Service, commits it, and lets the loop announce it.
func (c *crowd) set(name types.NamespacedName, endpoints []netip.AddrPort, change func(*model.Service)) {
	key := model.Key{Addr: shopAt.Addr(), Port: shopAt.Port(), Protocol: inet.TCP}
	s := &model.Service{Name: name, TerminateGone: true, SpreadSilent: 10 * time.Second, Ports: []*model.ServicePort{{
		Name: model.PortName{NamespacedName: name}, Protocol: inet.TCP, Frontends: []model.Frontend{{Key: key}},
		Cluster: endpoints,
	}}}
	if change != nil {
		change(s)
	}
	c.mu.Lock()
	c.now = endpoints
	c.mu.Unlock()
	c.Service(name, s)
	c.Planner.Set(name, s)
	c.Synced(&beside.Sync{})
}

// connect opens n connections to the Service, with a segment in each period.
func (c *crowd) connect(n int, every time.Duration) {
	for range n {
		m := &member{every: every}
		c.open(m)
		c.list = append(c.list, m)
	}
}

func (c *crowd) open(m *member) {
	c.next++
	m.last = time.Now()
	m.Flow = Flow{
		Protocol: inet.TCP, ID: c.next, Source: netip.AddrPortFrom(at(9_000), uint16(c.next)), Destination: shopAt,
		Server: c.now[rand.IntN(len(c.now))], Replied: true, Established: true, DNAT: true,
	}
}

// Delete implements Table. A client whose entry is deleted connects again.
func (c *crowd) Delete(_ context.Context, _ inet.Family, _ Selection, stale func(*Flow) bool) (out Outcome, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	for again := c.repeats; ; again = false {
		out.Seen = 0
		for _, m := range c.list {
			if m.every > 0 {
				m.last = m.last.Add(time.Since(m.last).Truncate(m.every))
			}
			out.Seen++
			m.Expires = life - uint32(time.Since(m.last)/time.Second)
			if flow := m.Flow; stale(&flow) {
				out.Deleted++
				m.cuts++
				// The next segment of the client gets a random endpoint, and a reset if this is another one.
				if before := m.Server; c.now[rand.IntN(len(c.now))] == before {
					c.open(m)
					m.Server = before
				} else {
					m.resets++
					c.open(m)
				}
			}
		}
		if !again {
			break
		}
	}
	c.most = max(c.most, out.Deleted)
	return out, nil
}

func (c *crowd) Close() error { return nil }

// pass lets time pass, in which the loop calls the listener.
func (c *crowd) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c.Serve(true)
		synctest.Wait()
		time.Sleep(time.Second / 2)
	}
}

// counts returns the connections of each endpoint, and the number of terminated ones.
func (c *crowd) counts() (of []int, cuts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of = make([]int, len(c.now))
	for _, m := range c.list {
		cuts += m.cuts
		if i := slices.Index(c.now, m.Server); i >= 0 {
			of[i]++
		}
	}
	return of, cuts
}

// After a scale-up from two endpoints to four, no endpoint has more than its share, about as many connections end as
// must, and never more than half in a minute. Afterwards, nothing reads the table.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2_400
		c := crowdOf(t, 2)
		c.connect(n, 0)
		c.scale(4)
		c.pass(longestSpread + calm)
		of, cuts := c.counts()
		if most := slices.Max(of); most > n/3 { // 1,200 before; in 100 runs at most 670
			t.Errorf("endpoints have %v connections", of)
		}
		if cuts < n*4/5 || cuts > n*4/3 {
			t.Errorf("%d connections are terminated", cuts)
		}
		if c.most > n/roundsPerShare+1 {
			t.Errorf("%d connections are terminated in a round", c.most)
		}
		lab.Same(t, 0, len(c.active)+len(c.waiting)+c.room.Total(), "the spreading has no end")
		before := c.reads
		if c.pass(longestSpread); c.reads != before {
			t.Errorf("%d more reads", c.reads-before)
		}
	})
}

// Each row has steps after which connections may be terminated or not.
func TestSpreadOnlyAfterAScaleUp(t *testing.T) {
	other := []netip.AddrPort{endpoint(7), endpoint(8)}
	for name, tc := range map[string]struct {
		steps func(*crowd)
		ends  bool
	}{
		"a scale-up": {func(c *crowd) { c.scale(4) }, true},
		"the Service gets its first endpoints": {func(c *crowd) {
			c.scale(0)
			c.pass(time.Hour)
			c.scale(2)
		}, false},
		"other endpoints": {func(c *crowd) { c.set(web, other, nil) }, false},
		"endpoints leave during the spreading": {func(c *crowd) {
			c.scale(4)
			c.pass(2 * calm)
			c.scale(2)
			c.each(func(m *member) { m.cuts = 0 })
		}, false},
		"one leaves during the spreading": {func(c *crowd) {
			c.scale(4)
			c.pass(2 * calm)
			c.scale(3)
			c.each(func(m *member) { m.cuts = 0 })
		}, true},
		"other endpoints after the spreading": {func(c *crowd) {
			c.scale(4)
			c.pass(longestSpread + calm)
			c.each(func(m *member) { m.Server, m.cuts = endpoint(1), 0 })
			c.set(web, slices.Concat(more[:2], other), nil)
		}, false},
		"one of two leaves":         {func(c *crowd) { c.scale(1) }, false},
		"more, but only for a time": {func(c *crowd) { c.scale(4); c.pass(calm - time.Second); c.scale(2) }, false},
		"one returns soon":          {func(c *crowd) { c.scale(1); c.each(c.open); c.pass(calm / 2); c.scale(2) }, false},
		"one returns later":         {func(c *crowd) { c.scale(1); c.each(c.open); c.pass(2 * calm); c.scale(2) }, true},
		"the annotation is removed": {func(c *crowd) {
			c.scale(4)
			c.set(web, c.now, func(s *model.Service) { s.SpreadSilent = 0 })
		}, false},
		"the annotation is set later": {func(c *crowd) {
			c.set(web, c.now, func(s *model.Service) { s.SpreadSilent = 0 })
			c.scale(4)
		}, false},
		"the Service is deleted":     {func(c *crowd) { c.scale(4); c.Service(web, nil) }, false},
		"the commit fails":           {func(c *crowd) { c.scale(4); c.fresh, c.waiting = c.waiting, c.fresh }, false},
		"another port":               {with(func(m *member) { m.Destination = otherPort }), false},
		"another address":            {with(func(m *member) { m.Destination = netip.AddrPortFrom(at(5), 80) }), false},
		"the policy Local":           {as(ofFrontend(model.Frontend{Local: true})), false},
		"an external IP":             {as(ofFrontend(model.Frontend{Kind: model.ExternalIP})), false},
		"a load-balancer IP":         {as(ofFrontend(model.Frontend{Kind: model.LoadBalancer})), true},
		"a node port":                {as(ofFrontend(model.Frontend{Kind: model.NodePort})), true},
		"UDP":                        {with(func(m *member) { m.Protocol = inet.UDP }), false},
		"a connection is not open":   {with(func(m *member) { m.Established = false }), false},
		"not translated by the DNAT": {with(func(m *member) { m.DNAT = false }), false},
		"data under way":             {with(func(m *member) { m.Unacknowledged = true }), false},
		"a segment every 9 s":        {with(func(m *member) { m.every = 9 * time.Second }), false},
		"a segment every 15 s":       {with(func(m *member) { m.every = 15 * time.Second }), true},
		"the table cannot be opened": {func(c *crowd) { c.failure = errors.New("no"); c.scale(4) }, false},
		"repeated flows":             {func(c *crowd) { c.repeats = true; c.scale(4) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := crowdOf(t, 2)
				c.connect(200, 0)
				tc.steps(c)
				c.pass(4 * calm)
				if of, cuts := c.counts(); cuts > 0 != tc.ends {
					t.Errorf("%d connections are terminated, endpoints have %v", cuts, of)
				}
			})
		})
	}
}

var otherPort = netip.AddrPortFrom(shopAt.Addr(), shopAt.Port()+1)

var more = []netip.AddrPort{endpoint(1), endpoint(2), endpoint(3), endpoint(4)}

// as replaces the Service by another one, which then gets more endpoints.
func as(change func(*model.Service)) func(*crowd) {
	return func(c *crowd) {
		before := c.now
		c.Service(web, nil)
		c.Planner.Set(web, nil)
		c.set(web, before, change)
		c.set(web, more, change)
	}
}

// ofFrontend replaces the frontend by one of another form.
func ofFrontend(f model.Frontend) func(*model.Service) {
	return func(s *model.Service) {
		f.Key = s.Ports[0].Frontends[0].Key
		s.Ports[0].Frontends[0] = f
	}
}

// with scales the Service of changed connections up.
func with(change func(*member)) func(*crowd) {
	return func(c *crowd) { c.scale(4); c.each(change) }
}

func (c *crowd) each(f func(*member)) {
	for _, m := range c.list {
		f(m)
	}
}

// Nodes with one connection each are more even together, and a client gets at most two resets.
func TestSpreadOfFewConnections(t *testing.T) {
	const nodes = 400
	of := make([]int, 4)
	for range nodes {
		synctest.Test(t, func(t *testing.T) {
			c := crowdOf(t, 2)
			c.connect(1, 0)
			c.scale(4)
			c.pass(longestSpread + calm)
			node, _ := c.counts()
			if n := c.list[0].resets; n > 2 {
				t.Fatalf("the client gets %d resets", n)
			}
			for i := range node {
				of[i] += node[i]
			}
		})
	}
	if most := slices.Max(of); most > 175 { // 200 before; 123 are expected, with a standard deviation of 9
		t.Errorf("endpoints have %v connections", of)
	}
}

// Endpoints with weights get shares by their weights.
func TestSpreadByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2_400
		c := crowdOf(t, 2)
		c.connect(n, 0)
		weighted := func(s *model.Service) { s.Ports[0].ClusterWeights = []uint16{5, 1, 1, 1} }
		c.set(web, more, weighted)
		c.pass(longestSpread + calm)
		// The clients of this test ignore the weights, so the first endpoint has less than its share, and the others
		// have more.
		of, _ := c.counts()
		if of[0] < n/2 {
			t.Errorf("endpoints have %v connections", of)
		}
	})
}

// Each row has the seconds until the entry of a connection expires, 10 s after this was 100 s, and whether the
// connection ends. It must have been silent for 5 s.
func TestSilence(t *testing.T) {
	for name, tc := range map[string]struct {
		expires uint32
		change  func(*spread, *Flow)
		ends    bool
	}{
		"silent":                                  {90, func(*spread, *Flow) {}, true},
		"silent, rounded down":                    {89, func(*spread, *Flow) {}, true},
		"silent, rounded up":                      {91, func(*spread, *Flow) {}, true},
		"a packet after 2 s":                      {92, func(*spread, *Flow) {}, false},
		"a packet just now":                       {100, func(*spread, *Flow) {}, false},
		"the kernel has shortened the time":       {80, func(*spread, *Flow) {}, false},
		"the time is unknown":                     {0, func(*spread, *Flow) {}, false},
		"another connection":                      {90, func(_ *spread, f *Flow) { f.ID++ }, false},
		"another client":                          {90, func(_ *spread, f *Flow) { f.Source = shopAt }, false},
		"another endpoint":                        {90, func(_ *spread, f *Flow) { f.Server = more[1] }, false},
		"a longer silence is needed":              {90, func(s *spread, _ *Flow) { s.silent = 11 * time.Second }, false},
		"no more may end":                         {90, func(s *spread, _ *Flow) { s.ends = 0 }, false},
		"the endpoint has no more than its share": {90, func(s *spread, _ *Flow) { s.endpoints[0].above = 0 }, false},
		"the endpoints change in the pass":        {90, func(s *spread, _ *Flow) { s.stopped.Store(true) }, false},
		"not in the last pass":                    {90, func(s *spread, _ *Flow) { s.take(false) }, false},
	} {
		s := &spread{
			port: &model.ServicePort{Cluster: more}, silent: 5 * time.Second, ends: 1,
			endpoints: make([]tally, len(more)),
		}
		s.endpoints[0] = tally{above: 1, wanted: 1}
		now := time.Now()
		f := Flow{ID: 1, Server: more[0], Expires: 100, Replied: true, Established: true, DNAT: true}
		if s.visit(&f, now) {
			t.Errorf("%s: the connection ends at once", name)
		}
		s.take(true)
		f.Expires = tc.expires
		tc.change(s, &f)
		lab.Same(t, tc.ends, s.visit(&f, now.Add(10*time.Second)), "%s: ends", name)
	}
}

// After as many connections have ended as must, the spreading ends even if an endpoint has more than its share. Counts
// of an interrupted pass are not used.
func TestSpreadEnds(t *testing.T) {
	s := &spread{port: &model.ServicePort{Cluster: more}, endpoints: make([]tally, len(more)), counted: true}
	s.endpoints[0].count = 100
	if s.plan(mostPerRound) {
		t.Error("the spreading continues")
	}
	s.endpoints[0].count = 100
	if s.take(false); s.endpoints[0].count != 0 {
		t.Error("the counts of an interrupted pass remain")
	}
}

// Many Services of one namespace share its part of the room and of the terminations. A Service of another namespace
// has its own part.
func TestSpreadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crowdOf(t, 1)
		many := make([]netip.AddrPort, 300)
		for i := range many {
			many[i] = endpoint(i)
		}
		for i := range 40 {
			name := types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}
			c.set(name, many[:100], nil)
			c.set(name, many, nil)
		}
		other := types.NamespacedName{Namespace: "other", Name: "web"}
		c.set(other, many[:2], nil)
		c.set(other, many[:4], nil)
		time.Sleep(calm)
		c.Serve(true)
		if got, most := c.room.Taken("evil"), room.New(mostSpread).Most(); got > most || got < most-len(many)-1 {
			t.Errorf("a namespace has %d endpoints, at most %d", got, most)
		}
		lab.Same(t, 4+1, c.room.Taken("other"), "another namespace has no room")
		synctest.Wait()
	})
}

// TestWaitingPortsAreSeldomRead: the loop calls Serve often. It reads the service ports that wait once in an interval.
func TestWaitingPortsAreSeldomRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crowdOf(t, 2)
		c.scale(4)
		c.Serve(true)
		if next := time.Until(c.Spreads.next); len(c.waiting) != 1 || next != roundInterval {
			t.Errorf("%d service ports wait, and the next look is after %v", len(c.waiting), next)
		}
	})
}
