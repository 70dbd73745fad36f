package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// TestFlowsOfANodePortComeWithSinglePorts: without the single ports at an address of this node or of another node, flows
// to these would look like flows to the node port.
func TestFlowsOfANodePortComeWithSinglePorts(t *testing.T) {
	for name, at := range map[string]netip.Addr{"this node": nodeIP, "another node": netip.MustParseAddr("192.0.2.77")} {
		t.Run(name, func(t *testing.T) { singlePortsBeside(t, at) })
	}
}

func singlePortsBeside(t *testing.T, at netip.Addr) {
	p := New(testOptions())
	p.SetNodeAddresses(inet.IPv4, []netip.Addr{nodeIP})
	with := func(i int, f model.Frontend) *model.Service {
		s := benchService(i, 2, 0)
		f.Port, f.Protocol = 30_500, inet.UDP
		s.Ports[0].Protocol, s.Ports[0].Frontends = inet.UDP, []model.Frontend{f}
		return s
	}
	single := with(1, model.Frontend{Key: model.Key{Addr: at}, Kind: model.LoadBalancer})
	p.Set(single.Name, single)
	p.Flows().Take()
	s := with(2, model.Frontend{Kind: model.NodePort})
	p.Set(s.Name, s)
	taken := p.Flows().Take()
	namespace, beside := taken[single.Ports[0].Frontends[0].Key]
	if !beside || namespace != "" || taken[s.Ports[0].Frontends[0].Key] != s.Name.Namespace {
		t.Errorf("changed are %v, want also the single port, without a namespace", taken)
	}
}

// TestWhoChangesFlowsPays: a Service that claims a frontend of another one in vain causes no pass over connection
// tracking. If it takes the frontend, and releases it, only its own namespace pays for the passes.
func TestWhoChangesFlowsPays(t *testing.T) {
	const owner, thief = 5_000, 2_000
	with := func(i int, k model.Kind, last uint16, created int64) *model.Service {
		s := benchService(i, 2, 0)
		if s.Created = time.Unix(created, 0); last != 0 {
			s.Ports[0].Name.Port = model.RangesPort
		}
		s.Ports[0].Protocol, s.Ports[0].Frontends = inet.UDP, []model.Frontend{{Kind: k, Key: model.Key{
			Addr: testAddr(inet.IPv4, 7, 1), Port: 53, Last: last, Protocol: inet.UDP}}}
		return s
	}
	for name, c := range map[string]struct {
		kind    model.Kind
		last    uint16
		created int64
		takes   bool
	}{
		"a younger thief of a port":   {model.ExternalIP, 0, 9, false},
		"an older thief of a port":    {model.ExternalIP, 0, 1, true},
		"a younger thief of a range":  {model.ExternalIP, 60, 9, false},
		"a thief of a load balancer":  {model.LoadBalancer, 0, 1, false},
		"an older thief of a range":   {model.ExternalIP, 60, 1, true},
		"an older thief of all ports": {model.ExternalIP, 65_535, 1, true},
	} {
		p := New(testOptions())
		s := with(owner, c.kind, c.last, 5)
		p.Set(s.Name, s)
		e := with(thief, model.ExternalIP, c.last, c.created)
		for _, now := range []*model.Service{e, nil} {
			p.Flows().Take()
			p.Set(e.Name, now)
			taken := p.Flows().Take()
			if c.takes != (len(taken) > 0) || c.takes && taken[s.Ports[0].Frontends[0].Key] != e.Name.Namespace {
				t.Errorf("%s: changed are %v, want the frontend, for %s: %t", name, taken, e.Name.Namespace, c.takes)
			}
		}
	}
}
