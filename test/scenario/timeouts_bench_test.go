package scenario

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// BenchmarkFlood sends UDP queries, each from another address, to a Service whose endpoint does not answer. It reports
// the largest number of entries of connection tracking, and the number of entries that the kernel evicted before their
// timeout because the table was full. nf_conntrack_max is that of the machine, for each network namespace.
func BenchmarkFlood(b *testing.B) {
	const lasts = 20 * time.Second
	for _, load := range []struct {
		perSecond int
		timeouts  string
	}{{50_000, ""}, {50_000, "udp=5s/30s"}, {50_000, "udp=2s/30s"}, {25_000, "udp=5s/30s"}} {
		b.Run(fmt.Sprintf("%d/%s", load.perSecond, cmp.Or(load.timeouts, "of the node")), func(b *testing.B) {
			l, to := silentService(b, load.timeouts)
			for b.Loop() {
				var sent, most int
				var err error
				var client sync.WaitGroup
				_, before := tracking(b, l.Node)
				client.Go(func() { sent, err = flood(l.Client, to, load.perSecond, lasts) })
				for begun := time.Now(); time.Since(begun) < lasts; time.Sleep(100 * time.Millisecond) {
					entries, _ := tracking(b, l.Node)
					most = max(most, entries)
				}
				client.Wait()
				lab.Must(b, err)
				_, after := tracking(b, l.Node)
				b.ReportMetric(float64(sent)/lasts.Seconds(), "queries/s")
				b.ReportMetric(float64(most), "entries")
				b.ReportMetric(float64(after-before), "evicted")
			}
		})
	}
}

// silentService starts the proxy with a Service whose endpoint does not answer.
func silentService(b *testing.B, timeouts string) (l *lab.Lab, to netip.AddrPort) {
	b.Helper()
	l = lab.ForTest(b, lab.Config{Pods: 1})
	lab.Must(b, l.Pods[0].Do(func() error {
		silent, err := net.ListenUDP("udp4", &net.UDPAddr{Port: firstPort})
		if err == nil {
			b.Cleanup(func() { _ = silent.Close() })
		}
		return err
	}))
	s, err := parseSettings(nil)
	lab.Must(b, err)
	p, err := startPipeline(l.Node, s, b.TempDir())
	lab.Must(b, err)
	b.Cleanup(func() { lab.Check(b, errors.Join(p.close(), cleanUp(l.Node)), "clean up") })
	list, err := endpointSlices(fmt.Appendf(nil, "shop/dns dns=%d/udp: pod-0", firstPort))
	lab.Must(b, err)
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop, annotations: {kube-nftproxy.io/conntrack-timeouts: %q}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: dns, port: 53, protocol: UDP}]}
`, timeouts)
	if timeouts == "" {
		text = strings.Replace(text, ", annotations: {kube-nftproxy.io/conntrack-timeouts: \"\"}", "", 1)
	}
	lab.Must(b, os.WriteFile(filepath.Join(p.folder, "dns.yaml"), []byte(text+documentSeparator+string(list)), 0o600))
	lab.Must(b, p.load())
	return l, netip.MustParseAddrPort("10.96.0.10:53")
}

// flood sends queries with a constant rate, from 32,768 addresses of the pod network, because one address of the node
// does not have enough ports for masquerading.
func flood(from *lab.Host, to netip.AddrPort, perSecond int, lasts time.Duration) (sent int, err error) {
	err = from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // all packets are sent
		// An IPv4 header, whose length and checksum the kernel adds, and a UDP header without a checksum.
		packet := make([]byte, 20+8+12)
		packet[0], packet[8], packet[9] = 4<<4|5, 64, unix.IPPROTO_UDP
		copy(packet[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(packet[22:], to.Port())
		binary.BigEndian.PutUint16(packet[24:], 8+12)
		at := &unix.SockaddrInet4{Addr: to.Addr().As4()}
		begun := time.Now()
		for passed := time.Duration(0); passed < lasts; passed = time.Since(begun) {
			for ; sent < int(passed.Seconds()*float64(perSecond)); sent++ {
				binary.BigEndian.PutUint32(packet[12:], 10<<24|244<<16|1<<15|rand.Uint32N(1<<15))
				binary.BigEndian.PutUint16(packet[20:], uint16(1024+rand.Uint32N(1<<15)))
				if err := unix.Sendto(fd, packet, 0, at); err != nil {
					return err
				}
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	return sent, err
}

// tracking returns the number of entries of connection tracking of a host, and the number of all evicted ones.
func tracking(b *testing.B, h *lab.Host) (entries, evicted int) {
	b.Helper()
	lab.Must(b, h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		names := strings.Fields(lines[0])
		for _, line := range lines[1:] { // one for each processor; the entries are those of all
			number := func(name string) int {
				n, _ := strconv.ParseInt(strings.Fields(line)[slices.Index(names, name)], 16, 64)
				return int(n)
			}
			entries, evicted = number("entries"), evicted+number("early_drop")
		}
		return nil
	}))
	return entries, evicted
}
