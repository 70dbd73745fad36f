//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// testWake: a client's first connection to a Service that scales to zero becomes an Event and a metric. A scaler that waits for the Event adds the
// endpoint, and the same connection is answered.
func testWake(t *testing.T, w *world, d *daemon) {
	asleep := service("asleep", corev1.IPv4Protocol, corev1.IPv6Protocol)
	asleep.Annotations = map[string]string{"service.cilium.io/scale-to-zero": "true"}
	w.apply(asleep)
	const gauge = `kubenftproxy_service_demand{namespace="default",service="asleep"}`
	eventually(t, patience, func() error {
		m, err := d.scrape()
		if n, shown := m[gauge]; n != 0 || !shown {
			return fmt.Errorf("demand before the first connection: %v, shown: %v, error %w", n, shown, err)
		}
		return err
	})
	events, err := w.api.Client().EventsV1().Events("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "reason=Demand"})
	must(t, err)
	defer events.Stop()
	type result struct {
		lab.Answer
		at time.Time
	}
	results := make(chan result, 1)
	start := time.Now()
	go func() {
		a := w.Client.Probe(t.Context(), inet.TCP, w.clusterIPs("asleep")[0], lab.Options{Timeout: patience})
		results <- result{a, time.Now()}
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	var e *eventsv1.Event
	select {
	case r := <-results:
		t.Fatalf("the client got %s without an endpoint", r)
	case change := <-events.ResultChan():
		e, _ = change.Object.(*eventsv1.Event)
	case <-late.C:
		t.Fatal("no Event about the client's connection")
	}
	seen := time.Now()
	if e == nil || e.Regarding.Name != "asleep" || e.Regarding.Kind != "Service" || e.Type != corev1.EventTypeNormal {
		t.Errorf("Event %+v, want one on the Service", e)
	}
	m, err := d.scrape()
	if err != nil || m[gauge] != 1 {
		t.Errorf("demand with the Event: %v, want 1; error %v", m[gauge], err)
	}
	w.apply(slice("asleep", "asleep-4", endpoint(w.Pods[0].IPv4)))
	ready := time.Now()
	r := <-results
	if r.Outcome != lab.Answered || r.Server != w.Pods[0].Name {
		t.Errorf("the client's first connection: %s, want an answer of %s", r, w.Pods[0].Name)
	}
	t.Logf("Event %s after the connection began, answer %s after the endpoint was written", seen.Sub(start), r.at.Sub(ready))
	if m := d.awaitIdle(patience); m[gauge] != 1 || m[`kubenftproxy_refused_total{reason="held"}`] == 0 {
		t.Errorf("demand of the Service that is awake: %v, held packets: %v", m[gauge], m[`kubenftproxy_refused_total{reason="held"}`])
	}
	w.delete(asleep)
}
