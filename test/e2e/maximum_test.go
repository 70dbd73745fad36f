//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// testMaximum: the only endpoint of a Service has its maximum of connections. A client of a further connection is refused until a connection ends.
func testMaximum(t *testing.T, w *world, d *daemon) {
	const most = 2
	limited := service("limited")
	limited.Annotations = map[string]string{"kube-nftproxy.io/max-connections": fmt.Sprint(most)}
	w.apply(limited, slice("limited", "limited-1", endpoint(w.Pods[0].IPv4)))
	to := w.clusterIPs("limited")[0]
	var open []net.Conn
	connect := func() error {
		c, err := w.Client.Dial(t.Context(), inet.TCP, to)
		if err == nil {
			open = append(open, c)
		}
		return err
	}
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for len(open) < most {
		eventually(t, patience, connect)
	}
	refused := func() error {
		a := w.Client.Probe(t.Context(), inet.TCP, to, lab.Options{})
		if a.Outcome != lab.Refused {
			return fmt.Errorf("with %d connections: %s, want refused", most, a)
		}
		return nil
	}
	eventually(t, patience, refused)
	if err := refused(); err != nil { // the first refusal is not the last one
		t.Error(err)
	}
	eventually(t, patience, func() error {
		if m := d.awaitIdle(patience); m[`kubenftproxy_refused_total{reason="max_connections"}`] == 0 {
			return errors.New("no connection counts as refused because of the maximum")
		}
		return nil
	})
	must(t, open[0].Close())
	eventually(t, patience, connect)
	w.delete(limited)
}
