package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// kindOfClient are HTTP/2 clients with one connection each, as a gRPC channel has.
type kindOfClient struct {
	name string
	// pause is the mean time between requests, ping the silence before a ping, and keepalive the one before a probe of
	// TCP.
	pause, ping, keepalive time.Duration
	// takes is the duration of a request.
	takes time.Duration
	// retries is true if the client repeats a failed request once.
	retries            bool
	sent, lost, resets atomic.Int64
}

const perKind = 40

// serveHTTP2 answers requests, after the time in their body.
func serveHTTP2(h *lab.Host, port uint16) (stop func() error, err error) {
	var listener net.Listener
	err = h.Do(func() error {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), port).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		takes, _ := time.ParseDuration(string(body))
		time.Sleep(takes)
	}), Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }()
	return server.Close, nil
}

func (k *kindOfClient) run(ctx context.Context, h *lab.Host, to netip.AddrPort) {
	transport := &http.Transport{
		Protocols: new(http.Protocols), MaxConnsPerHost: 1,
		HTTP2: &http.HTTP2Config{SendPingTimeout: k.ping, PingTimeout: 5 * time.Second},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := h.Dial(ctx, inet.TCP, to)
			if err != nil {
				return nil, err
			}
			return conn, conn.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{
				Enable: k.keepalive > 0, Idle: k.keepalive, Interval: k.keepalive,
			})
		},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	request := func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.String(), strings.NewReader(k.takes.String()))
		if err != nil {
			return err
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	}
	for ctx.Err() == nil {
		k.sent.Add(1)
		err := request()
		if err != nil && k.retries && ctx.Err() == nil {
			k.resets.Add(1)
			err = request()
		}
		if err != nil && ctx.Err() == nil {
			k.lost.Add(1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(float64(k.pause) * (0.5 + rand.Float64()))):
		}
	}
}

// BenchmarkSpread measures the time until connections are even after a scale-up from two endpoints to four, and the
// lost requests of several kinds of clients.
func BenchmarkSpread(b *testing.B) {
	const silent = 10
	l := lab.ForTest(b, lab.Config{Pods: 4, Remotes: 2})
	for _, h := range []*lab.Host{l.Pods[0], l.Pods[1], l.Remotes[0], l.Remotes[1]} {
		stop, err := serveHTTP2(h, echoPort)
		lab.Must(b, err)
		b.Cleanup(func() { _ = stop() })
	}
	s, err := parseSettings(nil)
	lab.Must(b, err)
	p, err := startPipeline(l.Node, s, b.TempDir())
	lab.Must(b, err)
	b.Cleanup(func() { lab.Check(b, errors.Join(p.close(), cleanUp(l.Node)), "clean up") })
	scale := func(endpoints string) {
		list, err := endpointSlices(fmt.Appendf(nil, "shop/web %d: %s", echoPort, endpoints))
		lab.Must(b, err)
		text := fmt.Sprintf(spreading, silent) + documentSeparator + string(list)
		err = errors.Join(os.WriteFile(filepath.Join(p.folder, "web.yaml"), []byte(text), 0o600), p.load())
		lab.Must(b, err)
	}
	second := time.Second
	kinds := []*kindOfClient{
		{name: "a request every second", pause: second, keepalive: 15 * second},
		{name: "a request every minute, a ping after 12 s", pause: 60 * second, ping: 12 * second},
		{name: "a request every minute, a keepalive probe after 15 s", pause: 60 * second, keepalive: 15 * second},
		{name: "a request every minute, nothing else", pause: 60 * second},
		{name: "a request every minute, nothing else, repeated once", pause: 60 * second, retries: true},
		{name: "requests of 20 s, a keepalive probe after 15 s", pause: second, takes: 20 * second, keepalive: 15 * second},
	}
	b.ResetTimer()
	for b.Loop() {
		scale("pod-0 remote-0")
		ctx, stop := context.WithCancel(b.Context())
		var clients sync.WaitGroup
		for _, k := range kinds {
			for range perKind {
				clients.Go(func() { k.run(ctx, l.Pods[3], netip.MustParseAddrPort("10.96.0.10:70")) })
			}
		}
		time.Sleep(10 * second)
		begun := time.Now()
		scale("pod-0 remote-0 pod-1 remote-1")
		even := time.Duration(0)
		for time.Since(begun) < 9*time.Minute {
			of, err := established(l.Node)
			lab.Must(b, err)
			all := 0
			for _, n := range of {
				all += n
			}
			if float64(slices.Max(of))*4 <= 1.15*float64(all) {
				if even == 0 {
					even = time.Since(begun)
				}
			} else {
				even = 0
			}
			b.Logf("%v: %v", time.Since(begun).Round(second), of)
			time.Sleep(15 * second)
		}
		stop()
		clients.Wait()
		b.ReportMetric(even.Seconds(), "s-until-even")
		for _, k := range kinds {
			b.Logf("%s: %d requests, %d lost, %d repeated", k.name, k.sent.Load(), k.lost.Load(), k.resets.Load())
		}
	}
}

// established returns the number of open translated connections of each endpoint.
func established(h *lab.Host) (list []int, err error) {
	of := map[netip.AddrPort]int{}
	err = h.Do(func() error {
		table, err := conntrack.OpenNetlink()
		if err != nil {
			return err
		}
		_, _, err = table.Each(context.Background(), inet.IPv4, func(f *conntrack.Flow) {
			if f.DNAT && f.Established {
				of[f.Server]++
			}
		})
		return errors.Join(err, table.Close())
	})
	for _, n := range of {
		list = append(list, n)
	}
	slices.Sort(list)
	return list, err
}
