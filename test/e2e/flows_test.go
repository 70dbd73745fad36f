//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestUDPClientsFollow: a client that goes on sending from one port reaches the endpoint that there is now, and is refused
// where there is none; the kernel would keep it with the first one for as long as it sends.
func TestUDPClientsFollow(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 3})
	first, second, client := w.Pods[0], w.Pods[1], w.Pods[2]
	w.serve(first, second)
	w.start().awaitIdle(patience)
	w.apply(balanced())
	w.applySlices("a", endpointsOf(first))
	addrs := w.webAddrs()
	conns := make([]net.Conn, len(addrs))
	for i, to := range addrs {
		reach(t, client, to, first.Name)
		conn, err := client.Dial(t.Context(), model.UDP, to)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // it has done its duty
		conns[i] = conn
	}
	expect := func(when, want string) {
		t.Helper()
		for i, conn := range conns {
			eventually(t, patience, func() error {
				if got := ask(conn); got != want {
					return fmt.Errorf("%s: the client of %s is answered by %q, want %q", when, addrs[i], got, want)
				}
				return nil
			})
		}
	}
	expect("at first", first.Name)
	w.applySlices("a", endpointsOf(second))
	expect("after the endpoint was replaced", second.Name)
	w.applySlices("a", unready(endpointsOf(second)))
	expect("after the service was scaled to zero", "refused")
	w.applySlices("a", endpointsOf(first))
	expect("after it got an endpoint again", first.Name)
}

// unready makes an endpoint one that is there and serves nobody.
func unready(e [2]discoveryv1.Endpoint) [2]discoveryv1.Endpoint {
	for i := range e {
		e[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
	}
	return e
}

// ask sends a datagram and says who answered.
func ask(conn net.Conn) string {
	const soon = 300 * time.Millisecond
	buf := make([]byte, 512)
	err := conn.SetDeadline(time.Now().Add(soon))
	if err == nil {
		_, err = conn.Write([]byte("who\n"))
	}
	n := 0
	if err == nil {
		n, err = conn.Read(buf)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return err.Error()
	}
	a, err := lab.ParseAnswer(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return err.Error()
	}
	return a.Server
}

// TestHealthCheckNodePort asks as a load balancer does which nodes have endpoints.
func TestHealthCheckNodePort(t *testing.T) {
	const port = 32100
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 1})
	d := w.start()
	d.awaitIdle(patience)
	taken, err := w.Node.Serve(model.TCP, port)
	if err != nil {
		t.Fatal(err)
	}
	svc := balanced()
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, port
	w.apply(svc)
	w.applySlices("a", endpointsOf(w.Pods[0]))
	eventually(t, patience, func() error {
		list, err := w.api.Client().EventsV1().Events("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == "FailedToStartServiceHealthcheck" && e.Regarding.Name == "web" {
				return nil
			}
		}
		return fmt.Errorf("no Event of the taken port among %d", len(list.Items))
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, status int, endpoints string) {
		t.Helper()
		for _, addr := range w.Node.Addrs() {
			url := fmt.Sprintf("http://%s/anything", net.JoinHostPort(addr.String(), fmt.Sprint(port)))
			eventually(t, patience, func() error {
				got, body, err := d.get(url)
				if err != nil || got != status || !strings.Contains(string(body), `"localEndpoints": `+endpoints+",") {
					return fmt.Errorf("%s: %s says %d %s, %v; want %d and %s endpoints", when, url, got, body, err, status, endpoints)
				}
				return nil
			})
		}
	}
	w.applySlices("a", endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0]))
	expect("one endpoint here", http.StatusOK, "1")
	w.applySlices("a", endpointsOf(w.Remotes[0]))
	expect("none here", http.StatusServiceUnavailable, "0")
	w.delete(svc)
	eventually(t, patience, func() error {
		if status, _, err := d.get(fmt.Sprintf("http://%s:%d/", w.Node.IPv4, port)); err == nil {
			return fmt.Errorf("the deleted Service still answers with %d", status)
		}
		return nil
	})
}
