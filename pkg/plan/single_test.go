package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// elementsAt returns the sets of the elements with the name of a Service and of its slots, sorted.
func (r *recorder) elementsAt(s *model.Service) (list []string) {
	for _, e := range r.elements {
		if e.Comment == s.Ports[0].Name.String() || e.Set.Name == "endpoints" || e.Set.Name == "local-endpoints" {
			list = append(list, e.Set.Name)
		}
	}
	slices.Sort(list)
	return list
}

// TestAClusterIPWithOneEndpointIsOneElement: a service port with only cluster IPs and one endpoint takes no number, and
// one element for each cluster IP. All other service ports have a number.
func TestAClusterIPWithOneEndpointIsOneElement(t *testing.T) {
	for name, c := range map[string]struct {
		alter     func(*model.Service)
		endpoints bool // the connections of endpoints are counted
		want      []string
	}{
		"plain": {func(*model.Service) {}, false, []string{"singles"}},
		"two cluster IPs": {func(s *model.Service) {
			front := s.Ports[0].Frontends[0]
			front.Addr = testAddr(inet.IPv4, 97, 1)
			s.Ports[0].Frontends = append(s.Ports[0].Frontends, front)
		}, false, []string{"singles", "singles"}},
		"policy Local": {func(s *model.Service) {
			p := s.Ports[0]
			p.Cluster, p.Local, p.Frontends[0].Local = nil, p.Cluster, true
		}, false, []string{"singles"}},
		"policy Local, no endpoint here": {func(s *model.Service) {
			s.Ports[0].Cluster, s.Ports[0].Frontends[0].Local = nil, true
		}, false, []string{"services"}},
		"no endpoint": {func(s *model.Service) { s.Ports[0].Cluster = nil }, false, []string{"services"}},
		"two endpoints": {func(s *model.Service) {
			s.Ports = benchService(0, 2, 0).Ports
		}, false, []string{"endpoints", "endpoints", "services"}},
		"an external IP": {func(s *model.Service) {
			front := s.Ports[0].Frontends[0]
			front.Kind, front.Addr = model.ExternalIP, testAddr(inet.IPv4, 98, 1)
			s.Ports[0].Frontends = append(s.Ports[0].Frontends, front)
		}, false, []string{"endpoints", "services", "services"}},
		"affinity":        {func(s *model.Service) { s.Ports[0].Affinity = time.Hour }, false, []string{"draw", "services"}},
		"counted by zone": {func(*model.Service) {}, true, []string{"endpoints", "services"}},
	} {
		o := testOptions()
		o.CountEndpoints = c.endpoints
		p := New(o)
		sink, s := record(t, p), benchService(0, 1, 0)
		c.alter(s)
		p.Set(s.Name, s)
		lab.Same(t, c.want, sink.elementsAt(s), name)
		plain := !slices.Contains(c.want, "services")
		if n := p.rooms[ofNumbers.in(0)].Total() + p.rooms[ofAffine.in(0)].Total(); (n == 0) != plain {
			t.Errorf("%s: %d numbers", name, n)
		}
		if p.Service(s.Name).Cost() < len(s.Ports[0].Frontends) { // its deletion has a cost
			t.Errorf("%s: cost %d", name, p.Service(s.Name).Cost())
		}
	}
}

// TestASingleEndpointBecomesMany: a cluster IP passes from one map to the other with each change of its number of
// endpoints, and is never in both or in none. Its number and its room come back.
func TestASingleEndpointBecomesMany(t *testing.T) {
	p := New(testOptions())
	sink, l := record(t, p), p.rules.layouts[inet.IPv4]
	key := frontendKey(&benchService(0, 0, 0).Ports[0].Frontends[0].Key)
	for i, n := range []int{1, 2, 1, 0, 1, 3, 0, 2, 1} {
		s := benchService(0, n, 0)
		s.Ports[0].HasEndpoints = n > 0
		p.Set(s.Name, s)
		single, is := sink.elements[nft.ID{Set: l.singles, Key: key}]
		_, many := sink.elements[nft.ID{Set: l.services, Key: key}]
		step := fmt.Sprintf("step %d, %d endpoints", i, n)
		if is != (n == 1) || many == is {
			t.Errorf("%s: singles %v, services %v", step, is, many)
		}
		if is && single.Data.AsEndpoint(inet.IPv4) != s.Ports[0].Cluster[0] {
			t.Errorf("%s: the endpoint is %v", step, single.Data.AsEndpoint(inet.IPv4))
		}
		if taken := p.rooms[ofNumbers.in(0)].Total(); (taken == 0) != (n == 1) {
			t.Errorf("%s: %d numbers", step, taken)
		}
	}
}
