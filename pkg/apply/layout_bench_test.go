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
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// BenchmarkFrontends writes Services with one and with three frontends for each port into an empty namespace. It reports the number of elements, the
// kernel's time for the batch, and the kernel's memory. Other programs change the memory by some MiB.
func BenchmarkFrontends(b *testing.B) {
	for _, size := range sizes[1:] {
		for _, f := range inet.Families {
			for _, frontends := range []int{1, 3} {
				b.Run(fmt.Sprintf("%dx%d/%s/%d", size.services, size.endpoints, f, frontends), func(b *testing.B) {
					lab.EnterNamespace(b)
					p := plan.New(options())
					for i := range size.services {
						s := wide(f, i, size.endpoints, frontends)
						p.Set(s.Name, s)
					}
					for b.Loop() {
						b.StopTimer()
						lab.Must(b, lab.Err(Cleanup("")))
						k, before := open(b), kernelMemory(b)
						k.follow(p)
						b.StartTimer()
						r := mustSync(b, k, p, Full)
						b.StopTimer()
						b.ReportMetric(float64(r.Elements), "elements")
						b.ReportMetric(float64(r.Commit.Milliseconds()), "commit-ms")
						b.ReportMetric(kernelMemory(b)-before, "kernel-MiB")
						b.StartTimer()
					}
				})
			}
		}
	}
}

// wide returns a Service of one family with a cluster IP, and external IPs for the other frontends.
func wide(f inet.Family, i, endpoints, frontends int) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: fmt.Sprint("team-", i%10), Name: fmt.Sprint("svc-", i)}}
	p := &model.ServicePort{
		Name: model.PortName{NamespacedName: s.Name, Port: "http"}, Protocol: inet.TCP, Family: f, HasEndpoints: true,
	}
	at := func(net, n int) netip.Addr {
		if f == inet.IPv4 {
			return netip.AddrFrom4([4]byte{byte(net), byte(n >> 16), byte(n >> 8), byte(n)})
		}
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: byte(net), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	for n := range frontends {
		kind := model.ExternalIP
		if n == 0 {
			kind = model.ClusterIP
		}
		p.Frontends = append(p.Frontends, model.Frontend{Kind: kind, Key: model.Key{Addr: at(20+n, i), Port: 80, Protocol: inet.TCP, Family: f}})
	}
	for e := range endpoints {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(at(100, i*endpoints+e), 8080))
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

func kernelMemory(b *testing.B) float64 {
	mib, err := program.KernelMemory()
	lab.Must(b, err)
	return mib
}
