package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// calm is the time for which the endpoints of a service port must stay the same before its connections are spread.
	calm = 30 * time.Second
	// roundInterval is the least time between two rounds. They also take at most 1/maxShare of the time.
	roundInterval = 10 * time.Second
	// longestSpread is the time after which the rest of the connections stays.
	longestSpread = 10 * time.Minute
	// mostSpread is the largest number of endpoints and frontends of all service ports whose connections are being
	// spread. Others wait.
	mostSpread = 1 << 18
)

// SpreadsConfig has the parts of [Spreads].
type SpreadsConfig struct {
	Planner *plan.Planner
	Now     func() time.Time
	// Open and Metrics are those of [Config].
	Open    func() (Table, error)
	Metrics Metrics
}

// Spreads is a listener that spreads silent TCP connections over more endpoints: after the number of endpoints of a
// service port has grown, endpoints with more than their share let go of connections. The deletion of the entry has the
// same effect as with [Desired.Terminate].
type Spreads struct {
	SpreadsConfig
	runner *beside.Runner

	addresses [2][]netip.Addr
	ports     map[types.NamespacedName]map[portOf]*spreadPort
	// fresh have changes of endpoints that are not committed. waiting have committed ones, or wait for room.
	fresh, waiting map[*spreadPort]struct{}
	active         map[*spreadPort]struct{}
	room           *room.Room

	mu sync.Mutex
	// pending is the round that the pass has not finished, or nil. next is the time of the next round, and of the next
	// look at waiting.
	pending *round
	next    time.Time
	// failed is the error of the last pass. Only Run uses it.
	failed error
}

// portOf identifies a service port among those of its Service.
type portOf struct {
	name   string
	family inet.Family
}

// spreadPort is a service port whose connections may be spread.
type spreadPort struct {
	port   *model.ServicePort
	silent time.Duration
	// before is the number of endpoints over which the connections are spread already. changed is the time of the
	// commit with the current ones.
	before  int
	changed time.Time
	// spread is not nil while the connections are being spread.
	spread *spread
}

// NewSpreads returns a listener. [Spreads.Run] makes its passes.
func NewSpreads(c SpreadsConfig) *Spreads {
	s := &Spreads{
		SpreadsConfig: c, ports: map[types.NamespacedName]map[portOf]*spreadPort{},
		fresh: map[*spreadPort]struct{}{}, waiting: map[*spreadPort]struct{}{}, active: map[*spreadPort]struct{}{},
		room: room.New(mostSpread),
	}
	s.runner = beside.NewRunner(beside.Runner{
		First: beside.UntilWake, Work: s.pass, Failed: "Failed to spread connections, will retry",
	})
	return s
}

// Listener returns the functions that the loop calls.
func (s *Spreads) Listener() beside.Listener {
	return beside.Listener{
		Of: beside.Spreading, Service: s.Service, Node: s.Node, Synced: s.Synced, Serve: s.Serve,
	}
}

// Run makes passes until the context ends.
func (s *Spreads) Run(ctx context.Context) { s.runner.Run(ctx) }

// Node records the addresses that serve node ports.
func (s *Spreads) Node(n *beside.Node) { s.addresses = n.Addresses }

// Service records the endpoints of a Service. If they change, its connections are not spread any more for now.
func (s *Spreads) Service(name types.NamespacedName, service *model.Service) {
	ports := map[portOf]*spreadPort{}
	if service != nil && service.SpreadSilent > 0 {
		for _, port := range service.Ports {
			if port.Protocol != inet.TCP {
				continue
			}
			of := portOf{port.Name.Port, port.Family}
			p := s.ports[name][of]
			if p == nil {
				p = &spreadPort{before: len(port.Cluster)}
			} else if !slices.Equal(p.port.Cluster, port.Cluster) {
				s.stop(p)
				s.fresh[p] = struct{}{}
			}
			p.port, p.silent, ports[of] = port, service.SpreadSilent, p
		}
	}
	for of, p := range s.ports[name] {
		if ports[of] == nil {
			s.stop(p)
			delete(s.fresh, p)
		}
	}
	if s.ports[name] = ports; len(ports) == 0 {
		delete(s.ports, name)
	}
}

// stop ends the spreading of connections of a service port.
func (s *Spreads) stop(p *spreadPort) {
	delete(s.waiting, p)
	delete(s.active, p)
	if p.spread != nil {
		p.spread.stopped.Store(true)
		s.room.Change(p.port.Name.Namespace, p.spread.size, 0)
		p.spread = nil
	}
}

// Synced starts the time of calm.
func (s *Spreads) Synced(sync *beside.Sync) {
	if sync.Err != nil {
		return
	}
	for p := range s.fresh {
		p.changed = s.Now()
		s.waiting[p] = struct{}{}
	}
	clear(s.fresh)
}

// Serve starts rounds, and uses their results.
func (s *Spreads) Serve(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	if !on || s.pending != nil || len(s.waiting)+len(s.active) == 0 || now.Before(s.next) {
		return
	}
	s.next = now.Add(roundInterval) // the loop calls Serve often, and many service ports may wait
	for p := range s.waiting {
		s.start(p, now)
	}
	s.plan(now)
	if len(s.active) > 0 {
		s.pending = s.round()
		s.runner.Wake()
	}
}

// plan plans the next round with the counts of the last one. The limit is shared by namespaces, and then by service
// ports.
func (s *Spreads) plan(now time.Time) {
	ports := map[string]int{}
	for p := range s.active {
		ports[p.port.Name.Namespace]++
	}
	for p := range s.active {
		most := mostPerRound / float64(len(ports)*ports[p.port.Name.Namespace])
		p.spread.port = p.port // weights may have changed
		if !p.spread.plan(most) || now.Sub(p.spread.began) >= longestSpread {
			p.before = len(p.port.Cluster)
			if p.spread.ended > 0 {
				klog.Background().V(2).Info("Spread connections over more endpoints", "servicePortName", //nolint:mnd // klog
					p.port.Name, "ipFamily", p.port.Family, "endpoints", p.before, "terminated", p.spread.ended)
			}
			s.stop(p)
		}
	}
}

// round returns the next round.
func (s *Spreads) round() *round {
	r := &round{desired: &Desired{}, spreads: map[model.Key]*spread{}}
	keys := map[model.Key]string{}
	for p := range s.active {
		r.all = append(r.all, p.spread)
		for i := range p.port.Frontends {
			f := &p.port.Frontends[i]
			flows, exists := s.Planner.Flows().Of(f.Key)
			if exists && flows.Port == p.port.Name && spreads(f) {
				r.desired.Frontend(f.Key, flows)
				r.spreads[f.Key], keys[f.Key] = p.spread, ""
			}
		}
	}
	s.Planner.Flows().SinglePortsBeside(keys, r.desired.Exempt)
	r.desired.Nodes, r.desired.Networks = s.addresses, s.Planner.Flows().NodeNetworks
	return r
}

// pass handles the pending round.
func (s *Spreads) pass(ctx context.Context) (beside.Pause, error) {
	s.mu.Lock()
	r := s.pending
	s.mu.Unlock()
	if r == nil {
		return beside.UntilWake, s.failed
	}
	start := time.Now()
	var counted bool
	counted, s.failed = s.read(ctx, r)
	for _, p := range r.all {
		p.take(counted)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	if paid := s.Now().Add((maxShare - 1) * time.Since(start)); paid.After(s.next) {
		s.next = paid
	}
	return beside.Pause{Most: roundInterval}, s.failed
}

// read reads the table. It reports false if it has not seen each flow once.
func (s *Spreads) read(ctx context.Context, r *round) (counted bool, err error) {
	table, err := s.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = table.Close() }() // each deletion has been acknowledged
	seen := 0
	out, err := sweep(ctx, table, s.Metrics, r.desired, []Selection{TCP}, func(flow *Flow) bool {
		seen++
		return r.visit(flow)
	})
	return err == nil && seen == out.Seen && !out.Partial, err
}

// spreads reports whether connections to a frontend may end. The endpoints of the policy Local have other shares, a
// range of ports keeps the ports, and the author of a Service can write any external IP. A Service whose connections
// are spread has no direct server return.
func spreads(f *model.Frontend) bool {
	return !f.Local && f.Last == 0 && (f.AtClusterIP() || f.Kind != model.ExternalIP)
}

// start starts to spread the connections of a service port if the number of its endpoints has grown for long enough.
func (s *Spreads) start(p *spreadPort, now time.Time) {
	endpoints := len(p.port.Cluster)
	if now.Sub(p.changed) < calm {
		return
	}
	if p.before > 0 && endpoints > p.before {
		part := partToEnd(p.before, endpoints)
		if part == 0 { // further endpoints may follow
			delete(s.waiting, p)
			return
		}
		size := endpoints + len(p.port.Frontends)
		if s.room.Change(p.port.Name.Namespace, 0, size) != room.None {
			return
		}
		p.spread = &spread{
			port: p.port, silent: p.silent, began: now, part: part, left: -1, size: size,
			endpoints: make([]tally, endpoints),
		}
		s.active[p] = struct{}{}
	} else {
		p.before = endpoints
	}
	delete(s.waiting, p)
}
