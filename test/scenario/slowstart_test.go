package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// warmup is a Service with slow start of an hour, whose endpoints are pods of a lab.
type warmup struct {
	*testing.T
	*pipeline
	lab  *lab.Lab
	http netip.AddrPort
}

// endpoints sets the number of endpoints, and waits until the kernel has them.
func (w *warmup) endpoints(n int) {
	w.Helper()
	slice := fmt.Sprintf("shop/web-4 http=%d echo=%d:", firstPort, echoPort)
	for _, pod := range w.lab.Pods[:n] {
		slice += " " + pod.Name
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {kube-nftproxy.io/slow-start: "3600"}}
spec:
  clusterIPs: [%s]
  ports: [{name: http, port: 80}, {name: echo, port: 70}]
---
`, w.http.Addr()) + mustSlices(w.T, slice)
	lab.Must(w, os.WriteFile(filepath.Join(w.folder, "web.yaml"), []byte(text), 0o600))
	lab.Must(w, w.load())
}

// pass makes time pass, and waits until the kernel has the steps of this time.
func (w *warmup) pass(d time.Duration) {
	w.Helper()
	w.clock.advance(d)
	lab.Must(w, w.settle())
}

// share checks the part of new connections that an endpoint gets, and that the trace of a packet foretells.
func (w *warmup) share(when string, pod int, want float64) {
	w.Helper()
	const connections, deviations, tolerance = 1500, 7, 0.005
	to := w.lab.Pods[pod]
	counts, err := w.lab.Node.Spread(w.Context(), inet.TCP, w.http, connections, lab.Options{})
	lab.Must(w, err)
	got, most := float64(counts[to.Name])/connections, deviations*math.Sqrt(want*(1-want)/connections)
	if math.Abs(got-want) > most {
		w.Errorf("%s, %s gets %.1f %% of the connections, want %.1f ± %.1f %%: %v", when, to.Name, 100*got, 100*want, 100*most, counts)
	}
	foretold, err := w.foretold(to)
	if err != nil || math.Abs(foretold-want) > tolerance {
		w.Errorf("%s, the trace foretells %.3f for %s, want %.3f; %v", when, foretold, to.Name, want, err)
	}
}

// foretold returns the probability of an endpoint in the trace of a packet.
func (w *warmup) foretold(to *lab.Host) (sum float64, err error) {
	err = w.lab.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		table, err := read.Load(conn, inet.IPv4, plan.TableName)
		if err != nil {
			return err
		}
		packet, err := trace.From(w.lab.Client.IPv4, w.http, inet.TCP, host.Routes{})
		if err != nil {
			return err
		}
		t, err := trace.Follow(trace.Config{Table: table, Elements: conn, Routes: host.Routes{}}, packet)
		if err != nil {
			return err
		}
		for _, way := range t.Ways {
			if way.To.Addr() == to.IPv4 {
				sum += way.Probability
			}
		}
		return nil
	})
	return sum, err
}

// A new endpoint gets a tenth of the weight of the others, then more with each step. An established connection stays. An endpoint that returns starts
// again. After a restart, all endpoints have their full weight, and the kernel's tables are those of the plan.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t, lab.Config{Pods: 3})
	for _, pod := range l.Pods {
		lab.Must(t, lab.Err(pod.Serve(inet.TCP, firstPort)))
		lab.Must(t, lab.Err(pod.ServeEcho(echoPort)))
	}
	s, err := parseSettings(nil)
	lab.Must(t, err)
	w := &warmup{T: t, lab: l, http: netip.MustParseAddrPort("10.96.0.10:80")}
	if w.pipeline, err = startPipeline(l.Node, s, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Check(t, errors.Join(w.close(), cleanUp(l.Node)), "clean up") })
	w.endpoints(2)
	w.share("at the start", 1, 1./2)
	conn, err := l.Node.Dial(context.Background(), inet.TCP, netip.AddrPortFrom(w.http.Addr(), 70))
	lab.Must(t, err)
	defer conn.Close() //nolint:errcheck // its use is checked
	established := &connection{"the established connection", conn, bufio.NewReader(conn)}
	if _, err := established.in.ReadString('\n'); err != nil { // the server's greeting
		t.Fatal(err)
	}

	w.endpoints(3)
	w.share("as a new endpoint", 2, 1./21)
	w.share("beside a new endpoint", 0, 10./21)
	w.pass(30 * time.Minute)
	w.share("after half of slow start", 2, 5./25)
	w.pass(30 * time.Minute)
	w.share("after slow start", 2, 1./3)
	w.endpoints(2)
	w.endpoints(3)
	w.share("after it has returned", 2, 1./21)
	lab.Check(t, established.echo(), "an established connection after all steps")

	if w.pipeline, err = w.fault(l.Node, s, restart); err != nil {
		t.Fatal(err)
	}
	w.endpoints(3)
	w.share("after a restart", 2, 1./3)
	lab.Check(t, established.echo(), "an established connection after a restart")
}
