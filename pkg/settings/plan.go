package settings

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
)

// Source holds the API objects.
type Source interface {
	proxy.Cluster
	// Get returns a Service and its EndpointSlices.
	Get(name types.NamespacedName) model.Objects
}

// Facts returns the facts that a daemon would plan with, from the Node and the ServiceCIDRs of a source, for the given
// IP families, and problems of these objects. It fails if the addresses of this host cannot be read.
func (s *Settings) Facts(source Source, families []inet.Family) (
	facts proxy.Facts, problems []model.Problem, err error,
) {
	object := source.Node()
	facts.Node = model.NodeOf(s.NodeName, object).WithIP(s.NodeIP)
	facts.ServiceCIDRs, problems = model.ServiceCIDRs(source.ServiceCIDRs())
	nodePorts := s.NodePortAddresses()
	for _, f := range families {
		if facts.NodeAddresses[f], err = nodePorts.Addresses(f, facts.Node); err != nil {
			return facts, problems, err
		}
	}
	if s.Config.DetectLocalMode == config.NodeCIDR && object != nil {
		pods, more := model.PodCIDRs(object)
		facts.PodCIDRs, problems = pods, append(problems, more...)
	}
	return facts, problems, nil
}

// Recall makes a planner assign the numbers in the kernel's tables to Services that are about to be planned.
type Recall func(*plan.Planner, []*model.Service) error

// Plan plans all Services of a source with a new planner for the given IP families, as the daemon does at its start,
// but with the given starting endpoints. It returns the problems of the objects, and the error of recall. starts and
// recall may be nil.
func (s *Settings) Plan(p *plan.Planner, families []inet.Family, source Source, facts *proxy.Facts,
	starts map[types.NamespacedName]*model.Starts,
	recall Recall) (problems []model.Problem, err error) {
	options := s.ModelOptions()
	for _, f := range families {
		p.SetNodeAddresses(f, facts.NodeAddresses[f])
		p.SetServiceCIDRs(f, facts.ServiceCIDRs[f])
		if facts.PodCIDRs[inet.IPv4].IsValid() || facts.PodCIDRs[inet.IPv6].IsValid() {
			p.Rules().SetLocalPods(f, plan.LocalPods{Prefix: facts.PodCIDRs[f]})
		}
	}
	names := source.Services()
	built := make(map[types.NamespacedName]*model.Service, len(names))
	for _, name := range names {
		options.Starts = starts[name]
		service := model.Build(source.Get(name), facts.Node, options)
		if recall != nil {
			if err := recall(p, []*model.Service{service}); err != nil {
				return problems, err
			}
		}
		built[name] = service
		if service != nil {
			problems = append(problems, service.Problems...)
		}
	}
	age := func(name types.NamespacedName) model.Age { return built[name].Age() }
	p.Begin(names, age, func(names []types.NamespacedName) {
		for _, name := range names {
			p.Set(name, built[name])
		}
	})
	return problems, nil
}
