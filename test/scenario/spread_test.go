package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// spreading is the Service of a test with two endpoints, and then four.
const spreading = `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations: {kube-nftproxy.io/terminate-connections: gone, kube-nftproxy.io/spread-connections: "%d"}
spec:
  type: NodePort
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ports: [{port: 70, nodePort: 30070}]
`

func (d *departing) scale(silent int, endpoints string) {
	d.Helper()
	text := fmt.Sprintf(spreading, silent) + documentSeparator +
		mustSlices(d.T, fmt.Sprintf("shop/web %d: %s", echoPort, endpoints))
	lab.Must(d, os.WriteFile(filepath.Join(d.folder, "web.yaml"), []byte(text), 0o600))
	lab.Must(d, d.load())
}

// round makes time pass, waits for one more pass that spreads connections, and returns the number of terminated ones in
// each family.
func (d *departing) round(after time.Duration) (ended [2]int) {
	d.Helper()
	d.clock.advance(after)
	timeout := time.After(time.Minute)
	for range inet.Families {
		select {
		case p := <-d.spread:
			lab.Must(d, p.err)
			ended[p.family] += p.deleted
		case <-timeout:
			d.Fatal("no pass")
		}
	}
	return ended
}

// After a scale-up, connections to the earlier endpoints end if no packet of them passes for five seconds: the next
// segment of the client gets a reset, unless the rules select the same endpoint again. All others continue.
func TestSpreadConnections(t *testing.T) {
	t.Parallel()
	const (
		silent  = 5
		idle    = 32 // from each client, in each family
		busy    = 4
		atLeast = 12
	)
	l := lab.ForTest(t, lab.Config{Pods: 4, Remotes: 2})
	for _, host := range []*lab.Host{l.Pods[0], l.Pods[1], l.Remotes[0], l.Remotes[1]} {
		lab.Must(t, lab.Err(host.ServeEcho(echoPort)))
	}
	d := &departing{T: t, lab: l, pipeline: pipelineForTest(t, l)}
	d.scale(silent, "pod-0 remote-0")
	var waiting, working []*client
	for f, a := range []string{"10.96.0.10", "fd00:10:96::10"} {
		inside := netip.AddrPortFrom(netip.MustParseAddr(a), 70)
		outside := netip.AddrPortFrom(l.Node.Addrs()[f], 30070)
		for from, to := range map[*lab.Host]netip.AddrPort{l.Pods[3]: inside, l.Node: inside, l.Client: outside} {
			for n := range idle + busy {
				c := &client{&connection{text: fmt.Sprintf("from %s to %s", from.Name, to)}, from, to, stays}
				if d.open(c); n < idle {
					waiting = append(waiting, c)
				} else {
					working = append(working, c)
				}
			}
		}
	}
	d.live("before the scale-up", waiting, false)

	last := map[*client]time.Time{}
	// On a busy machine, even these clients may have been silent.
	work := func(when string) {
		for _, c := range working {
			switch err := c.echo(); {
			case errors.Is(err, syscall.ECONNRESET) && time.Since(last[c]) > (silent-1)*time.Second:
				d.open(c)
			case err != nil:
				t.Errorf("%s, connection %s: %v", when, c.text, err)
			}
			lab.Must(t, c.acknowledge())
			last[c] = time.Now()
		}
	}
	work("before the scale-up")
	d.scale(silent, "pod-0 remote-0 pod-1 remote-1")
	var ended [2]int
	after := time.Minute / 2
	for n := 0; ended[0] < atLeast || ended[1] < atLeast; n++ {
		if n == 2 {
			time.Sleep((silent + 1) * time.Second) // the silence
		}
		if n == 50 { //nolint:mnd // enough
			t.Fatalf("%v connections of each family are terminated, want %d", ended, atLeast)
		}
		work("before a round")
		for f, n := range d.round(after) {
			ended[f] += n
		}
		after = time.Minute / 6
	}
	work("after the last round")
	resets := 0
	for _, c := range waiting {
		switch err := c.echo(); {
		case errors.Is(err, syscall.ECONNRESET):
			resets++
			d.open(c)
		case err != nil:
			t.Errorf("connection %s: %v", c.text, err)
		}
	}
	if resets == 0 {
		t.Errorf("no client gets a reset, %v connections of each family are terminated", ended)
	}
	work("after new connections")
}
