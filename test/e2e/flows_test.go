//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestUDPClientsAcrossARestart: clients from before the start are served on their source port, and those of a Service that was
// deleted during downtime are cut off.
func TestUDPClientsAcrossARestart(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2})
	first, client := w.Pods[0], w.Pods[1]
	w.serve(first)
	w.publishWeb(first)
	// Other rules make the kernel track connections and decide on their translation.
	nft(t, w.Node, "add table inet other; add chain inet other c { type nat hook prerouting priority -100; }; "+
		"add rule inet other c ct state new counter")
	addrs := w.clusterIPs("web")
	conns := make([]net.Conn, len(addrs))
	for i, to := range addrs {
		conn, err := client.Dial(t.Context(), inet.UDP, to)
		must(t, err)
		defer conn.Close() //nolint:errcheck // unused from here on
		conns[i] = conn
		if got := ask(conn); got == first.Name {
			t.Fatalf("the client of %s is answered although nothing runs", to)
		}
	}
	d := w.start()
	for i, conn := range conns {
		eventually(t, patience, func() error {
			if got := ask(conn); got != first.Name {
				return fmt.Errorf("the client of %s from before the start is answered by %q, want %q", addrs[i], got, first.Name)
			}
			return nil
		})
	}
	d.Kill()
	w.delete(balanced())
	for i, conn := range conns {
		if got := ask(conn); got != first.Name {
			t.Fatalf("the client of %s is answered by %q while nothing runs, want %q as before", addrs[i], got, first.Name)
		}
	}
	w.start().awaitIdle(patience)
	for i, conn := range conns {
		eventually(t, patience, func() error {
			if got := ask(conn); got == first.Name {
				return fmt.Errorf("the client of %s is still answered by %q, although its Service is deleted", addrs[i], got)
			}
			return nil
		})
	}
}

// unready makes endpoints not ready and not serving.
func unready(e [2]discoveryv1.Endpoint) [2]discoveryv1.Endpoint {
	for i := range e {
		e[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
	}
	return e
}

// ask sends a datagram and returns the server that replied.
func ask(conn net.Conn) string {
	a, err := lab.AskOnce(conn)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case err != nil:
		return err.Error()
	}
	return a.Server
}
