package proxy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// tally counts the elements that a planner adds and removes.
type tally int

func (n *tally) Put(nft.Element)     { *n++ }
func (n *tally) Remove(nft.Element)  { *n++ }
func (n *tally) Discard(nft.Element) {}
func (n *tally) ChangeRules()        {}

func annotated(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{"kube-nftproxy.io/" + name: value}
	}
}

// feature is a feature of a Service. Its two versions differ in every field that their author may change at once.
type feature struct {
	name string
	make func(version int) hostile
}

func (f *feature) build(version int) *model.Service {
	h := f.make(version)
	o := model.Objects{Service: h.service}
	for _, slice := range h.slices {
		o.Slices = append(o.Slices, stored(slice))
	}
	return model.Build(o, model.Node{Name: "node-1"}, model.Options{})
}

var costs = []feature{
	{"service ports", func(v int) hostile { return hostile{hostileService(300), hostileSlices(v, 1, 300, 1)} }},
	{"service ports without endpoints", func(int) hostile { return hostile{hostileService(300), nil} }},
	{"addresses", func(v int) hostile { return hostile{hostileService(1, externalIPs(v, 300)), nil} }},
	{"source ranges", func(v int) hostile {
		return hostile{hostileService(1, sourceRanges(v, 300)), hostileSlices(v, 1, 1, 1)}
	}},
	{"port ranges", func(v int) hostile {
		return hostile{hostileService(1, portRanges(v, 80)), hostileSlices(v, 1, 1, 10)}
	}},
	{"endpoints times ports", func(v int) hostile { return hostile{hostileService(20), hostileSlices(v, 1, 20, 20)} }},
	{"policy Local", func(v int) hostile { return hostile{hostileService(20, withLocal), hostileSlices(v, 1, 20, 20)} }},
	{"session affinity", func(v int) hostile {
		return hostile{hostileService(5, withAffinity), hostileSlices(v, 1, 5, 100)}
	}},
	{"connection limit", func(v int) hostile {
		return hostile{hostileService(5, annotated("max-connections", "5")), hostileSlices(v, 1, 5, 100)}
	}},
	{"connection limit with session affinity", func(v int) hostile {
		return hostile{hostileService(5, annotated("max-connections", "5"), withAffinity), hostileSlices(v, 1, 5, 100)}
	}},
	{"algorithm", func(v int) hostile { return hostile{hostileService(2, withHash(v)), hostileSlices(v, 1, 2, 10)} }},
	{"timeouts", func(v int) hostile {
		return hostile{hostileService(100, annotated("conntrack-timeouts", "tcp=60s")), hostileSlices(v, 1, 100, 1)}
	}},
}

// A Service with many port ranges has no rounds before those of others: the kernel takes long for a range.
func TestPortRangesAreDear(t *testing.T) {
	p, f := plan.New(plan.Options{Families: inet.Families[:1]}), feature{make: func(v int) hostile {
		return hostile{hostileService(1, portRanges(v, 50)), hostileSlices(v, 1, 1, 1)}
	}}
	s := f.build(0)
	lab.Same(t, true, p.Service(s.Name).CostOf(s) > littleElements, "50 port ranges exceed the work of a round of little work")
}

// A built Service knows its cost: it changes at most a few elements for each unit, whether it is created, changed or
// deleted.
func TestCostsOfFeatures(t *testing.T) {
	const perUnit, constant = 5, 20
	for _, feature := range costs {
		t.Run(feature.name, func(t *testing.T) {
			p, changed := plan.New(plan.Options{Families: inet.Families[:1]}), tally(0)
			p.ReportTo(&changed)
			first, second := feature.build(0), feature.build(1)
			for i, s := range []*model.Service{first, second, nil} {
				old := p.Service(first.Name)
				estimate := old.CostOf(s)
				cost := max(old.Cost(), estimate)
				changed = 0
				p.Set(first.Name, s)
				lab.Same(t, estimate, p.Service(first.Name).Cost(), "cost of the planned Service")
				if int(changed) > perUnit*cost+constant {
					t.Errorf("step %d changes %d elements, its cost is %d", i, changed, cost)
				}
			}
		})
	}
}
