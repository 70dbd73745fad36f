package apply

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// BenchmarkMaximum measures packets that start connections to a Service with ten endpoints: without a maximum, with one while each endpoint has some
// connections, and while all endpoints are full. The kernel checks the connections of an endpoint at most once per tick of its clock. So one packet at a
// time takes longer than 64 at once. The result is the median of the batches, in ns per packet. It includes the kernel's forwarding: compare differences.
func BenchmarkMaximum(b *testing.B) {
	const endpoints = 10
	for _, c := range []struct{ most, have int }{{0, 0}, {1000, 0}, {1000, 100}, {1000, 900}, {100, 100}, {1000, 1000}} {
		for _, batch := range []int{1, 64} {
			b.Run(fmt.Sprintf("most=%d/have=%d/at-once=%d", c.most, c.have, batch), func(b *testing.B) {
				w, k := newWire(b), open(b)
				mustSync(b, k, newStickyPlanner(limited(0, "random", uint16(c.most), numbers(0, endpoints)...)), Full)
				const f = inet.IPv4
				to := destinations(f, 0)[0]
				have := 0
				for first := 0; have < c.have*endpoints; first += 64 {
					have += len(w.offer(f, 1<<21+first, min(64, c.have*endpoints-have), to))
				}
				w.port++
				last := &netlink.ConntrackFilter{}
				w.must(last.AddProtocol(unix.IPPROTO_UDP))
				w.must(last.AddPort(netlink.ConntrackOrigSrcPort, w.port))
				var times []float64
				for n := range b.N {
					start := time.Now()
					w.offer(f, n*batch, batch, to)
					times = append(times, float64(time.Since(start).Nanoseconds())/float64(batch))
					_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.Number()), last)
					w.must(err)
				}
				slices.Sort(times)
				b.ReportMetric(times[len(times)/2], "ns/packet")
				b.ReportMetric(times[len(times)/10], "ns/packet-p10")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkMaximumMemory measures the kernel's memory for an endpoint without connections, with its slot.
func BenchmarkMaximumMemory(b *testing.B) {
	for _, most := range []uint16{0, 1000} {
		b.Run(fmt.Sprintf("most=%d", most), func(b *testing.B) {
			newWire(b)
			k := open(b)
			p := newStickyPlanner()
			mustSync(b, k, p, Full)
			before := kernelMemory(b)
			const services, endpoints = 100, 100
			for i := range services {
				s := limited(i, "random", most, numbers(endpoints*i, endpoints*(i+1))...)
				p.Set(s.Name, s)
			}
			mustSync(b, k, p, Partial)
			b.ReportMetric((kernelMemory(b)-before)*(1<<20)/(2*services*endpoints), "B/endpoint")
			b.ReportMetric(0, "ns/op")
		})
	}
}
