package apply

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// plain returns an IPv4 Service with a cluster IP and some endpoints. Even and odd rounds differ by one endpoint.
func plain(i, endpoints, round int) *model.Service {
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
		n := uint32(i*endpoints + e)
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11 + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)}), 8080))
	}
	if round%2 == 1 {
		p.Cluster[endpoints-1] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{99, byte(i >> 16), byte(i >> 8), byte(i)}), 8080)
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

var sizes = []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {5000, 50}, {50000, 10}}

func fill(p *plan.Planner, services, endpoints int) {
	for i := range services {
		s := plain(i, endpoints, 0)
		p.Set(s.Name, s)
	}
}

// BenchmarkFullSync writes everything into an empty namespace.
func BenchmarkFullSync(b *testing.B) {
	lab.EnterNamespace(b)
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			p := plan.New(options())
			fill(p, size.services, size.endpoints)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				lab.Must(b, lab.Err(Cleanup("")))
				k := open(b)
				k.follow(p)
				b.StartTimer()
				r := mustSync(b, k, p, Full)
				b.ReportMetric(float64(r.Commit.Milliseconds()), "commit-ms")
			}
		})
	}
}

// BenchmarkReplaceOneEndpoint measures the time from the changed Service to the kernel's acknowledgement.
func BenchmarkReplaceOneEndpoint(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			k, p := open(b), plan.New(options())
			fill(p, size.services, size.endpoints)
			mustSync(b, k, p, Full)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s := plain(i%size.services, size.endpoints, 1+i/size.services)
				p.Set(s.Name, s)
				mustSync(b, k, p, Partial)
				i++
			}
		})
	}
}

// BenchmarkAdopt measures the sync of a new process that adopts the tables.
func BenchmarkAdopt(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			k, p := open(b), plan.New(options())
			fill(p, size.services, size.endpoints)
			mustSync(b, k, p, Full)
			b.ReportAllocs()
			for b.Loop() {
				k.Doubt()
				mustSync(b, k, p, Adopted)
			}
		})
	}
}
