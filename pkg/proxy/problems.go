package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// reportNew reports those of a Service's problems that it didn't have before.
func (p *Proxy) reportNew(name types.NamespacedName, problems []model.Problem) {
	known := p.problems[name]
	if len(known)+len(problems) == 0 {
		return
	}
	p.problemsChanged = true
	for _, problem := range problems {
		if !slices.Contains(known, problem) {
			p.Report(problem)
		}
	}
	if len(problems) == 0 {
		delete(p.problems, name)
		return
	}
	p.problems[name] = problems
}

// fieldOf tells where in a Service a kind of frontend comes from.
var fieldOf = [...]string{
	model.ClusterIP: "spec.clusterIPs", model.ExternalIP: "spec.externalIPs", model.LoadBalancer: "status.loadBalancer.ingress",
	model.NodePort: "spec.ports[].nodePort",
}

// reportConflicts reports what a Service and another one both claim.
func (p *Proxy) reportConflicts(name types.NamespacedName) {
	for _, c := range p.Planner.ConflictsOf(name) {
		p.reportConflict(c)
	}
}

func (p *Proxy) reportConflict(c plan.Conflict) {
	at := netip.AddrPortFrom(c.Key.Addr, c.Key.Port).String()
	if !c.Key.Addr.IsValid() {
		at = fmt.Sprint(c.Key.Port)
	}
	problem := model.Problem{
		Kind: "Service", Name: c.Loser.NamespacedName, Field: fieldOf[c.Kind],
		Reason: fmt.Sprintf("%s/%s goes to %s, which claims it too", at, c.Key.Protocol, c.Winner),
	}
	if _, known := p.conflicts[problem]; known {
		return
	}
	p.conflicts[problem] = struct{}{}
	p.Report(problem)
}

// countProblems counts the objects that have problems; conflicts that are over may be reported again.
func (p *Proxy) countProblems() {
	if len(p.conflicts) > 0 && p.Planner.Conflicts() == 0 {
		clear(p.conflicts)
	}
	if !p.problemsChanged {
		return
	}
	p.problemsChanged = false
	objects := map[string]map[types.NamespacedName]struct{}{"Service": {}, "EndpointSlice": {}, "ServiceCIDR": {}, "Node": {}}
	for _, list := range p.problems {
		for _, problem := range list {
			if objects[problem.Kind] != nil {
				objects[problem.Kind][problem.Name] = struct{}{}
			}
		}
	}
	for kind, names := range objects {
		p.Metrics.Rejected(kind, len(names))
	}
}
