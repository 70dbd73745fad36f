package plan

import (
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// TestFlowsOfANodePortComeWithSinglePorts: without the single ports at an address of the node, flows to these would look
// like flows to the node port.
func TestFlowsOfANodePortComeWithSinglePorts(t *testing.T) {
	p := New(testOptions())
	p.SetNodeAddresses(inet.IPv4, []netip.Addr{nodeIP})
	with := func(i int, f model.Frontend) *model.Service {
		s := benchService(i, 2, 0)
		f.Port, f.Protocol = 30_500, inet.UDP
		s.Ports[0].Protocol, s.Ports[0].Frontends = inet.UDP, []model.Frontend{f}
		return s
	}
	single := with(1, model.Frontend{Key: model.Key{Addr: nodeIP}, Kind: model.LoadBalancer})
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
