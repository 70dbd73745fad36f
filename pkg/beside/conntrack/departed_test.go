package conntrack

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// An open TCP connection from the frontend to the departed endpoint is stale. Each row changes one fact.
func TestConnectionsToDepartedEndpoints(t *testing.T) {
	to, endpoint := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.244.0.1:8080")
	departed := &Departed{}
	departed.Add(endpoint.Addr())
	for _, tc := range []struct {
		name   string
		change func(*Flow)
		want   bool
	}{
		{"open", func(*Flow) {}, true},
		{"half closed", func(f *Flow) { f.Established = false }, true},
		{"not answered", func(f *Flow) { f.Established, f.Replied = false, false }, true},
		{"in a zone", func(f *Flow) { f.Zone = 7 }, true},
		{"to another port of the endpoint", func(f *Flow) { f.Server = netip.AddrPortFrom(endpoint.Addr(), 9) }, true},
		{"closed", func(f *Flow) { f.Established, f.Closed = false, true }, false},
		{"to another endpoint", func(f *Flow) { f.Server = netip.MustParseAddrPort("10.244.0.2:8080") }, false},
		{"from another frontend", func(f *Flow) { f.Destination = netip.MustParseAddrPort("10.96.0.1:81") }, false},
		{"to the endpoint itself", func(f *Flow) { f.Destination, f.DNAT = endpoint, false }, false},
		{"UDP", func(f *Flow) { f.Protocol = inet.UDP }, false},
		{"SCTP", func(f *Flow) { f.Protocol = inet.SCTP }, false},
	} {
		d := &Desired{}
		d.Terminate(model.Key{Addr: to.Addr(), Port: to.Port(), Protocol: inet.TCP}, departed)
		f := Flow{Protocol: inet.TCP, Destination: to, Server: endpoint, Replied: true, Established: true, DNAT: true}
		tc.change(&f)
		lab.Same(t, tc.want, d.Stale(&f), "%s: stale", tc.name)
	}
}

// A pass over many connections deletes no more than PerSecond of them, and does not touch those of an endpoint that
// returns meanwhile. A request during the pass does not delay it. The pauses do not count as work: the next pass
// begins after the interval.
func TestTerminationsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, endpoint := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.244.0.1:8080")
		const n = 100_000
		table := &fakeTable{start: time.Now()}
		for range n {
			table.flows = append(table.flows, Flow{Protocol: inet.TCP, Destination: to, Server: endpoint, Replied: true, Established: true, DNAT: true})
		}
		r := New(Config{Open: func() (Table, error) { return table, nil }, Metrics: table, PerSecond: 10_000})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go r.Run(ctx)
		departed := &Departed{}
		request := func() {
			d := &Desired{}
			d.Terminate(model.Key{Addr: to.Addr(), Port: to.Port(), Protocol: inet.TCP}, departed)
			r.Request(d)
		}
		departed.Add(endpoint.Addr())
		request()
		time.Sleep(5 * time.Second)
		request()
		departed.Remove(endpoint.Addr())
		time.Sleep(5 * time.Second)
		// The first pass has 98 pauses of 51.2 ms after a delay of 20 ms; the second pass follows after one second.
		table.expect(t, "20ms IPv4 all deleted=50176", "6.0376s IPv4 all deleted=0")
	})
}

// If the kernel tracks only connections that begin with a SYN, no table is opened.
func TestOpenToTerminate(t *testing.T) {
	loose := filepath.Join(t.TempDir(), "nf_conntrack_tcp_loose")
	if table, err := OpenToTerminate(loose); err == nil {
		t.Errorf("without the sysctl: %v, want an error", table)
	}
	lab.Must(t, os.WriteFile(loose, []byte("0\n"), 0o600))
	if table, err := OpenToTerminate(loose); err == nil || !strings.Contains(err.Error(), "nf_conntrack_tcp_loose is 0") {
		t.Errorf("with 0: %v, %v, want an error", table, err)
	}
}
