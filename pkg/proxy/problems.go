package proxy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// objectKinds are the kinds of objects whose problems are counted.
var objectKinds = [...]string{"Service", "EndpointSlice", "ServiceCIDR", "Node", "Pod"}

// problemBook holds the reported problems, so that the loop reports each problem once.
type problemBook struct {
	// lists holds the problems of each Service, including those of its EndpointSlices. Problems of a Node or a
	// ServiceCIDR have a key of their own. objects has, for each list, the number of objects of each kind.
	lists   map[types.NamespacedName][]model.Problem
	objects map[types.NamespacedName][len(objectKinds)]int
	// total is the sum of objects.
	total [len(objectKinds)]int
	// losers are the Services with conflicts that are not reported yet, in turns by namespace. losing has the same
	// Services, and arrivals counts them. conflicts holds the reported conflicts of each Service that lost a frontend.
	losers    turns
	losing    map[types.NamespacedName]struct{}
	arrivals  uint64
	conflicts map[types.NamespacedName]map[model.Problem]struct{}
	// moving is true if the last call of reportConflicts found only frontends that a waiting Service is about to
	// release.
	moving bool
}

func newProblemBook() problemBook {
	return problemBook{
		lists: map[types.NamespacedName][]model.Problem{}, objects: map[types.NamespacedName][len(objectKinds)]int{},
		losing: map[types.NamespacedName]struct{}{}, conflicts: map[types.NamespacedName]map[model.Problem]struct{}{},
	}
}

// reportNew reports the problems that a Service did not have before. Its cost is linear in the number of old and new
// problems.
func (p *Proxy) reportNew(name types.NamespacedName, problems []model.Problem) {
	b := &p.problems
	before := b.lists[name]
	if slices.Equal(before, problems) {
		return
	}
	known := make(map[model.Problem]struct{}, len(before))
	for _, problem := range before {
		known[problem] = struct{}{}
	}
	for _, problem := range problems {
		if _, old := known[problem]; !old {
			p.Report(problem)
		}
	}
	for _, problem := range problems {
		delete(known, problem)
	}
	p.withdraw(known)
	b.count(name, problems)
	for kind, n := range b.total {
		p.Metrics.Rejected(objectKinds[kind], n)
	}
	if len(problems) == 0 {
		delete(b.lists, name)
		return
	}
	b.lists[name] = problems
}

// count updates the numbers of objects with problems after the list of one Service has changed.
func (b *problemBook) count(name types.NamespacedName, problems []model.Problem) {
	type object struct {
		kind string
		name types.NamespacedName
	}
	seen := make(map[object]struct{}, len(problems))
	var now [len(objectKinds)]int
	for i := range problems {
		o := object{problems[i].Kind, problems[i].Name}
		if _, again := seen[o]; again {
			continue
		}
		seen[o] = struct{}{}
		if kind := slices.Index(objectKinds[:], o.kind); kind >= 0 {
			now[kind]++
		}
	}
	before := b.objects[name]
	for kind := range now {
		b.total[kind] += now[kind] - before[kind]
	}
	if len(problems) == 0 {
		delete(b.objects, name)
		return
	}
	b.objects[name] = now
}

// fieldOf names, for each kind of frontend, the field of the Service or pod that has its address or port.
var fieldOf = [...]string{
	model.ClusterIP: "spec.clusterIPs", model.ExternalIP: "spec.externalIPs",
	model.LoadBalancer: "status.loadBalancer.ingress", model.NodePort: "spec.ports[].nodePort",
	model.HostPort: "spec.containers[].ports[].hostPort",
}

// conflictLister returns the conflicts between Services; see [plan.Conflicts].
type conflictLister interface {
	TakeLosers() (losers []plan.Loser, more bool)
	Of(loser types.NamespacedName) (list []plan.Conflict, all int)
}

// reportConflicts reports each frontend that a Service claims and another Service has. As long as a conflict exists,
// it is reported only once. To limit the cost of one sync, reportConflicts reports some conflicts, and the next syncs
// report the rest.
func (p *Proxy) reportConflicts(c conflictLister) {
	const leastCost = roundElements / 100 // at most a hundred Services
	b := &p.problems
	for more := true; more; {
		var losers []plan.Loser
		losers, more = c.TakeLosers()
		for _, l := range losers {
			if _, waits := b.losing[l.NamespacedName]; !waits {
				b.arrivals++
				b.losing[l.NamespacedName] = struct{}{}
				b.losers.add(&waiting{name: l.NamespacedName, cost: max(leastCost, l.Cost), arrived: b.arrivals})
			}
		}
	}
	b.moving = len(b.losing) > 0
	var moving []*waiting
	for sum := 0; sum < roundElements; {
		w := b.losers.next(func(*waiting) bool { return true })
		if w == nil {
			break
		}
		sum += w.cost
		list, all := c.Of(w.name)
		if slices.ContainsFunc(list, p.isMoving) {
			moving = append(moving, w)
			continue
		}
		b.moving = false
		delete(b.losing, w.name)
		p.reportConflictsOf(w.name, list, all)
	}
	for _, w := range moving { // the next sync may report them
		b.arrivals++
		w.arrived = b.arrivals
		b.losers.add(w)
	}
}

// isMoving reports whether one of the two Services of a conflict is about to release frontends.
func (p *Proxy) isMoving(c plan.Conflict) bool {
	return slices.ContainsFunc([]model.PortName{c.Winner, c.Loser}, func(name model.PortName) bool {
		w := p.queue.services[name.NamespacedName]
		return w != nil && w.kind == releasing
	})
}

// reportConflictsOf reports the new conflicts of one Service: the listed ones, and the number of all.
func (p *Proxy) reportConflictsOf(loser types.NamespacedName, list []plan.Conflict, all int) {
	before := p.problems.conflicts[loser]
	if all == 0 {
		p.withdraw(before)
		delete(p.problems.conflicts, loser)
		return
	}
	problems := make([]model.Problem, 0, len(list)+1)
	for i := range list {
		problems = append(problems, conflictProblem(&list[i]))
	}
	if all > len(list) {
		kind, object := model.ObjectOf(loser)
		problems = append(problems, model.Problem{Kind: kind, Name: object, Field: "spec", Reason: fmt.Sprintf(
			"other Services have more than %d of its addresses and ports; no more are reported", len(list))})
	}
	now := make(map[model.Problem]struct{}, len(problems))
	for _, problem := range problems {
		_, old := before[problem]
		_, again := now[problem] // reported for the other family
		if !old && !again {
			p.Report(problem)
		}
		now[problem] = struct{}{}
	}
	for problem := range now {
		delete(before, problem)
	}
	p.withdraw(before)
	p.problems.conflicts[loser] = now
}

// withdraw says that problems no longer exist.
func (p *Proxy) withdraw(gone map[model.Problem]struct{}) {
	if p.Withdraw == nil {
		return
	}
	for problem := range gone {
		p.Withdraw(problem)
	}
}

func conflictProblem(c *plan.Conflict) model.Problem {
	at := c.Key.Address()
	if !c.Key.Addr.IsValid() {
		at = fmt.Sprint(c.Key.Port)
	}
	reason := fmt.Sprintf("%s/%s is not programmed: already used by ", at, c.Key.Protocol)
	kind, object := model.ObjectOf(c.Loser.NamespacedName)
	out := model.Problem{Kind: kind, Name: object, Field: fieldOf[c.Kind], Reason: reason + c.WinnerText()}
	if c.Winner.Namespace != "" && c.Winner.Namespace != c.Loser.Namespace {
		winner, _ := model.ObjectOf(c.Winner.NamespacedName)
		out.EventReason = reason + "a " + winner + " of another namespace"
	}
	return out
}
