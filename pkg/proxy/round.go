package proxy

import (
	"context"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// A round ends after roundElements elements: to plan and commit them takes some ten milliseconds. It also ends after
// roundTime. Between two rounds, the loop handles repairs, questions and newer changes.
const (
	roundElements = 5_000
	roundTime     = 50 * time.Millisecond
)

// mostSettled is the number of frontends about which the planner decides again in one round, see
// [plan.Conflicts.Settle]. mostAgain is the largest number of Services that the loop plans again after room became
// free.
const mostSettled, mostAgain = 2_000, 64

// planFirst plans all Services before the first sync, and answers questions meanwhile. A partial batch would remove the
// Services of an earlier process.
func (p *Proxy) planFirst(names []types.NamespacedName) {
	const together = 32 // Services whose numbers the kernel reads at once
	p.unplanned = len(names)
	for part := range slices.Chunk(names, together) {
		services := make([]*model.Service, len(part))
		for i, name := range part {
			services[i] = p.builder.build(name, time.Time{})
		}
		// The planner recalls the numbers in the kernel's tables. If it assigned others, the tables would need a full
		// sync.
		if err := p.Kernel.Recall(p.Planner, services); err != nil {
			klog.Background().Error(err, "Cannot read the numbers of Services in the kernel's tables; "+
				"session affinity of some clients may be lost")
		}
		for i, name := range part {
			p.planService(name, services[i])
		}
		p.unplanned -= len(part)
		p.answer()
	}
	p.Planner.Conflicts().Settle(math.MaxInt)
	p.reportConflicts(p.Planner.Conflicts())
}

// planRound plans a round of changed Services, and returns their names.
func (p *Proxy) planRound() (planned []types.NamespacedName) {
	q, begun, elements := &p.queue, p.Now(), 0
	q.begin(begun)
	for w := q.next(false); w != nil; w = q.next(len(planned) > 0) {
		of, service, old := w.kind, p.builder.build(w.name, p.Now()), p.Planner.Service(w.name)
		q.grow(w, old.CostOf(service))
		switch {
		case !q.fits(w):
			q.enlarge(w) // the estimate does not know the slots of an algorithm
		case of != releasing && q.waits(w.name.Namespace) && old.Releases(service):
			q.postpone(w, old.Age())
		default:
			p.planService(w.name, service)
			planned, elements = append(planned, w.name), elements+w.cost
			q.tired = q.tired || w.cost > turnElements
		}
		over := elements >= roundElements || q.tired || p.Now().Sub(begun) >= roundTime || p.guard.touched()
		if of == releasing {
			// Services that exchange frontends should be in one round: otherwise, a frontend has no owner in between.
			over = elements >= roundElements && len(planned) > 1
		}
		if over {
			break
		}
	}
	totals := p.Planner.Totals()
	if totals.Disputed || len(p.problems.losing) > 0 {
		p.unsettled = p.Planner.Conflicts().Settle(mostSettled)
		p.reportConflicts(p.Planner.Conflicts())
	}
	if totals.Freed {
		p.planWaiting()
	}
	return planned
}

// restOfWaiting is the time between two looks at the Services that wait for room, as a multiple of the time of a look.
const restOfWaiting = 20

// planWaiting enqueues Services that lacked room on this node until now. It looks at each Service that waits: a crowd
// of them must not delay other changes.
func (p *Proxy) planWaiting() {
	start := p.Now()
	if p.waitingRest.end(start); p.waitingRest.until.IsZero() {
		p.enqueue(p.Planner.TakeWaiting(mostAgain))
		now := p.Now()
		p.waitingRest.after(now, now.Sub(start), restOfWaiting)
	}
}

// enqueue puts changed Services into the queue, with an estimate of their elements: to build a large Service would
// delay all other changes.
func (p *Proxy) enqueue(names []types.NamespacedName) {
	const least = 8 // the work for a Service without elements
	for _, name := range names {
		p.queue.push(name, max(least, p.Planner.Service(name).Cost(), p.Source.Get(name).Size()))
	}
}

// absorb reads the Node and the ServiceCIDRs if they changed. Then it puts the changed Services into the queue, plans
// a round of them, and returns the planned Services. Before the first sync, it plans all Services.
func (p *Proxy) absorb(ctx context.Context, dirty track.Dirty) []types.NamespacedName {
	// At the start, all Services are dirty already.
	if dirty.Node && p.absorbNode(ctx) && p.Planner.Totals().Services > 0 {
		dirty.Services = p.withAll(dirty.Services)
	}
	if dirty.ServiceCIDRs {
		p.absorbServiceCIDRs()
	}
	if dirty.Node || dirty.ServiceCIDRs {
		p.publish()
	}
	names := slices.SortedFunc(maps.Keys(dirty.Services), model.CompareNames)
	switch {
	case p.started:
		p.enqueue(names)
		return p.planRound()
	case p.Planner.Totals().Services > 0: // the first sync has failed
		p.planFirst(names)
		return names
	}
	if err := p.Kernel.Recall(p.Planner, nil); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read the kernel's tables; "+
			"session affinity of some clients may be lost")
	}
	age := func(name types.NamespacedName) model.Age { return p.Source.Get(name).Age() }
	p.Planner.Begin(names, age, p.planFirst)
	return names
}

// absorbNode reads this Node. It reports whether a field that affects the plan of Services has changed.
func (p *Proxy) absorbNode(ctx context.Context) (changed bool) {
	object := p.Source.Node()
	node := model.NodeOf(p.NodeName, object)
	if object == nil && p.facts.Node.Name != "" {
		node = p.facts.Node // a deleted Node registers again; until then, its last addresses and zone remain valid
	} else if node.IPs == ([2]netip.Addr{}) {
		node.IPs = p.facts.Node.IPs // a Node gets its addresses some time after it registers
	}
	node = node.WithIP(p.NodeIP)
	if node.IPs != p.facts.Node.IPs {
		message := "NodeIPs changed for the node" // both messages are kube-proxy's
		if p.facts.Node.IPs == ([2]netip.Addr{}) {
			message = "Successfully retrieved NodeIPs"
		}
		klog.FromContext(ctx).Info(message, "NodeIPs", node.IPs)
	}
	p.absorbAddresses(ctx, object, node)
	if p.NodeCIDR && object != nil {
		p.absorbPodCIDRs(ctx, object)
	}
	changed = node != p.facts.Node
	p.facts.Node = node
	return changed
}

// withAll adds the names of all Services.
func (p *Proxy) withAll(dirty map[types.NamespacedName]struct{}) map[types.NamespacedName]struct{} {
	if dirty == nil {
		dirty = map[types.NamespacedName]struct{}{}
	}
	for _, n := range p.Source.Services() {
		dirty[n] = struct{}{}
	}
	return dirty
}

// absorbAddresses passes the addresses of this node to the planner, and announces the reading of the Node. If it
// cannot read the addresses of a family, the planner keeps the previous addresses.
func (p *Proxy) absorbAddresses(ctx context.Context, object *corev1.Node, node model.Node) {
	for _, f := range p.Families {
		addrs, err := p.NodePorts.Addresses(f, node)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to get node ip address matching nodeport cidrs, "+
				"services with nodeport may not work as intended",
				"ipFamily", f)
			p.addressesAt = p.Now().Add(addressesRetry)
			continue
		}
		p.Planner.SetNodeAddresses(f, addrs)
		p.facts.NodeAddresses[f], p.sockets[f] = addrs, addrs
		if p.NodePorts.Everywhere(f, node) {
			p.sockets[f] = []netip.Addr{inet.Unspecified[f]}
		}
	}
	if none := node.IPs == ([2]netip.Addr{}); none != p.unaddressed {
		fallback := func(f inet.Family) bool { return p.NodePorts.Fallback(f, node) }
		if p.unaddressed = none; none && slices.ContainsFunc(p.Families, fallback) {
			klog.FromContext(ctx).Info("The address of this Node is unknown; node ports are served on all addresses "+
				"of this host", "node", node.Name, "addresses", slices.Concat(p.facts.NodeAddresses[:]...))
		}
	}
	p.Health.Node(object)
	reading := &beside.Node{Addresses: p.facts.NodeAddresses, Sockets: p.sockets}
	p.concerned(beside.AllKinds, func(l *beside.Listener) {
		if l.Node != nil {
			l.Node(reading)
		}
	})
	p.changed = beside.AllKinds
}

// absorbPodCIDRs passes the prefixes of this node's pods to the planner. If the Node has no prefixes, for example
// because it has just registered again, the planner keeps the previous prefixes.
func (p *Proxy) absorbPodCIDRs(ctx context.Context, object *corev1.Node) {
	cidrs, problems := model.PodCIDRs(object)
	p.reportNew(types.NamespacedName{Name: p.NodeName}, problems)
	if cidrs == p.facts.PodCIDRs || cidrs == ([2]netip.Prefix{}) {
		return
	}
	klog.FromContext(ctx).Info("Recognising pods of this node by their addresses", "podCIDRs", object.Spec.PodCIDRs)
	p.facts.PodCIDRs = cidrs
	for _, f := range p.Families {
		p.Planner.Rules().SetLocalPods(f, plan.LocalPods{Prefix: cidrs[f]})
	}
}

func (p *Proxy) absorbServiceCIDRs() {
	cidrs, problems := model.ServiceCIDRs(p.Source.ServiceCIDRs())
	p.reportNew(types.NamespacedName{}, problems)
	p.facts.ServiceCIDRs = cidrs
	for _, f := range p.Families {
		p.Planner.SetServiceCIDRs(f, cidrs[f])
	}
}

// planService announces a Service to the listeners, plans it, and reports its new problems. nil removes the Service
// from the plan. The planner gets the Service last, so that listeners can compare it with its planned form.
func (p *Proxy) planService(name types.NamespacedName, s *model.Service) {
	p.Metrics.Planned(name)
	kinds := beside.KindsOf(s)
	changed := kinds | p.kinds[name]
	p.changed |= changed
	if kinds != 0 {
		p.kinds[name] = kinds
	} else {
		delete(p.kinds, name)
	}
	p.concerned(changed, func(l *beside.Listener) {
		if l.Service != nil {
			l.Service(name, s)
		}
	})
	excess := p.Planner.Set(name, s)
	var problems []model.Problem
	if s != nil {
		problems = slices.Clip(s.Problems) // the list belongs to the Service, so append must copy it
	}
	if excess {
		kind, object := model.ObjectOf(name)
		for _, e := range p.Planner.Service(name).Excess() {
			problems = append(problems, model.Problem{Kind: kind, Name: object, Field: e.Field, Reason: e.Reason})
		}
	}
	if len(problems)+len(p.problems.lists[name]) > 0 {
		p.reportNew(name, problems)
	}
}

// builder builds changed Services from their objects.
type builder struct {
	source  Source
	options model.Options
	// node is the node for which Services are built.
	node *model.Node
	// starts holds the starting endpoints of Services with slow start, and steps the times of their next steps.
	starts map[types.NamespacedName]*model.Starts
	steps  steps
}

// build builds a Service, and records its starting endpoints. now is the zero time before the first sync.
func (b *builder) build(name types.NamespacedName, now time.Time) *model.Service {
	options := b.options
	options.Starts, options.Now = b.starts[name], &now
	s := model.Build(b.source.Get(name), *b.node, options)
	switch {
	case s != nil && s.Starts != nil:
		b.starts[name] = s.Starts
		b.steps.note(name, s.Starts.Next())
	case b.starts[name] != nil:
		delete(b.starts, name)
		delete(b.steps.next, name)
	}
	return s
}

// steps schedules slow start: the share of a starting endpoint rises in steps. All Services have their next steps at
// the same time, so that one batch has the steps of many Services. These times are at least stepEvery apart: a
// Service has at most one step in this interval, regardless of the number of its endpoints.
type steps struct {
	next map[types.NamespacedName]time.Time
	// at is the time of the next steps; zero if no endpoint is starting. last is the time of the previous ones.
	at, last time.Time
}

const stepEvery = time.Second

// note records the time of the next step of a Service; zero if it has none.
func (s *steps) note(name types.NamespacedName, next time.Time) {
	if next.IsZero() {
		delete(s.next, name)
		return
	}
	if s.next == nil {
		s.next = map[types.NamespacedName]time.Time{}
	}
	s.next[name] = next
	s.wakeAt(next)
}

func (s *steps) wakeAt(next time.Time) {
	if soonest := s.last.Add(stepEvery); next.Before(soonest) {
		next = soonest
	}
	if s.at.IsZero() || next.Before(s.at) {
		s.at = next
	}
}

// due returns the Services with a step that is due, sorted. The caller has to plan them.
func (s *steps) due(now time.Time) (names []types.NamespacedName) {
	s.at, s.last = time.Time{}, now
	for name, next := range s.next {
		if next.After(now) {
			s.wakeAt(next)
		} else {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// Starts returns the starting endpoints of all planned Services that have any.
func (p *Proxy) Starts(ctx context.Context) (map[types.NamespacedName]*model.Starts, error) {
	return ask(ctx, p, func() map[types.NamespacedName]*model.Starts {
		starts := map[types.NamespacedName]*model.Starts{}
		for name := range p.builder.steps.next {
			starts[name] = p.builder.starts[name]
		}
		return starts
	})
}
