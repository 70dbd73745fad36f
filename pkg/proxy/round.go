package proxy

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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
	q.rest.end(begun)
	for w := q.next(false); w != nil; w = q.next(len(planned) > 0) {
		of, service, old := w.kind, p.builder.build(w.name, p.Now()), p.Planner.Service(w.name)
		if of != releasing && len(q.services) > 0 && old.Releases(service) {
			q.postpone(w, old.Age())
		} else {
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
	p.unsettled = p.Planner.Conflicts().Settle(mostSettled)
	p.reportConflicts(p.Planner.Conflicts())
	if p.Planner.Totals().Freed {
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
		p.queue.push(name, max(least, p.Planner.Service(name).Elements(), p.Source.Get(name).Size()))
	}
}
