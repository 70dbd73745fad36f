package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// benchService returns an IPv4 Service with a cluster IP and some endpoints. Even and odd rounds differ by one endpoint.
func benchService(i, endpoints, round int) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}}
	if i >= 1000 { // one namespace has no room for all
		s.Name.Namespace = fmt.Sprint("tenant-", i/1000)
	}
	p := &model.ServicePort{
		Name: model.PortName{NamespacedName: s.Name, Port: "http"}, Protocol: inet.TCP, Family: inet.IPv4, HasEndpoints: true,
		Frontends: []model.Frontend{{Kind: model.ClusterIP, Key: model.Key{
			Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 80, Protocol: inet.TCP}}},
	}
	for e := range endpoints {
		n := i*endpoints + e
		addr := netip.AddrFrom4([4]byte{11 + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)})
		if e == endpoints-1 && round%2 == 1 {
			addr = netip.AddrFrom4([4]byte{99, byte(i >> 16), byte(i >> 8), byte(i)})
		}
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(addr, 8080))
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

var benchSizes = []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {5000, 50}}

// BenchmarkSetAll plans all Services of a cluster, as at the start.
func BenchmarkSetAll(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			services := make([]*model.Service, size.services)
			for i := range services {
				services[i] = benchService(i, size.endpoints, 0)
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer() // the constant rules are no work for a Service
				p := New(testOptions())
				b.StartTimer()
				for _, s := range services {
					p.Set(s.Name, s)
				}
			}
		})
	}
}

// counter is a sink that counts the calls of Put.
type counter struct{ puts int }

func (c *counter) Put(nft.Element)   { c.puts++ }
func (*counter) Remove(nft.Element)  {}
func (*counter) Discard(nft.Element) {}
func (*counter) ChangeRules()        {}

// BenchmarkSetOne replaces an endpoint of one Service among many.
func BenchmarkSetOne(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			p := New(testOptions())
			rounds := [2][]*model.Service{}
			for i := range size.services {
				rounds[0] = append(rounds[0], benchService(i, size.endpoints, 0))
				rounds[1] = append(rounds[1], benchService(i, size.endpoints, 1))
				p.Set(rounds[0][i].Name, rounds[0][i])
			}
			sink := &counter{}
			p.ReportTo(sink)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s := rounds[(1+i/size.services)%2][i%size.services]
				before := sink.puts
				if p.Set(s.Name, s); sink.puts == before {
					b.Fatal("nothing to add")
				}
				i++
			}
		})
	}
}
