package counters

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// plain returns a Service with a cluster IP and ten endpoints.
func plain(i int) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}}
	p := &model.ServicePort{
		Name: model.PortName{NamespacedName: s.Name, Port: "dns"}, Protocol: inet.UDP, Family: inet.IPv4, HasEndpoints: true,
		Frontends: []model.Frontend{{Kind: model.ClusterIP, Key: model.Key{
			Addr: netip.AddrFrom4([4]byte{10, 97 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 53, Protocol: inet.UDP}}},
	}
	for e := range 10 {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), byte(e)}), 8053))
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

// program writes a number of Services into the kernel, in a new network namespace for the calling goroutine.
func program(b *testing.B, services int) (*plan.Planner, *apply.Kernel) {
	b.Helper()
	lab.EnterNamespace(b)
	p := plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 1 << 14})
	for i := range services {
		s := plain(i)
		p.Set(s.Name, s)
	}
	k, err := apply.Open()
	lab.Must(b, err)
	b.Cleanup(func() { k.Close() })
	if _, err := k.Sync(p); err != nil {
		b.Fatal(err)
	}
	return p, k
}

// BenchmarkRead reads all counters, as a scrape does.
func BenchmarkRead(b *testing.B) {
	for _, services := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			p, _ := program(b, services)
			c, err := Open(p.Rules().Counters())
			lab.Must(b, err)
			b.ReportAllocs()
			for b.Loop() {
				c.next = time.Time{}
				lab.Must(b, c.Await(time.Minute))
			}
			lab.Must(b, c.Close())
		})
	}
}
