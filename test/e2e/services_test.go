//go:build e2e || twin

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestServicesThroughTheAPI follows one Service through its life, from all clients and at every kind of address.
func TestServicesThroughTheAPI(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2, Remotes: 2})
	w.serve(w.Pods[0], w.Remotes[0], w.Remotes[1])
	d := w.start()
	d.awaitIdle(patience)

	w.publishWeb(w.Pods[0])
	w.applySlices("b", endpointsOf(w.Remotes[0]))
	w.reachWeb("pod-0", "remote-0")

	t.Run("health", func(t *testing.T) { testHealth(t, w, d) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, d) })

	addrs := w.webAddrs()
	w.delete(balanced())
	for _, addr := range addrs {
		reach(t, w.Pods[1], addr)
		reach(t, w.Client, addr)
	}
	lab.Same(t, 1, d.awaitIdle(patience)[`kubenftproxy_batches_total{kind="full"}`], "full batches")
	d.noErrors()
}

// balanced returns a Service with every kind of frontend: two families, node ports, external and load-balancer IPs.
func balanced() *corev1.Service {
	s := service("web", corev1.IPv4Protocol, corev1.IPv6Protocol)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	s.Spec.ExternalIPs = []string{"203.0.113.7", "2001:db8:203::7"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.8"}, {IP: "2001:db8:203::8"}}
	return s
}

// webAddrs returns all addresses and ports of Service web.
func (w *world) webAddrs() []netip.AddrPort {
	w.Helper()
	addrs := w.clusterIPs("web")
	for _, s := range []string{"203.0.113.7", "203.0.113.8", "2001:db8:203::7", "2001:db8:203::8"} {
		addrs = append(addrs, netip.AddrPortFrom(netip.MustParseAddr(s), servicePort))
	}
	for _, addr := range w.Node.Addrs() {
		addrs = append(addrs, netip.AddrPortFrom(addr, 30080))
	}
	return addrs
}

// reachWeb waits until a pod, the node and a client reach exactly these servers at every address of Service web.
func (w *world) reachWeb(servers ...string) {
	w.Helper()
	for _, addr := range w.webAddrs() {
		for _, from := range []*lab.Host{w.Pods[1], w.Node, w.Client} {
			reach(w, from, addr, servers...)
		}
	}
}

// endpointsOf describes a host as an endpoint of both families.
func endpointsOf(h *lab.Host) [2]discoveryv1.Endpoint {
	v4, v6 := endpoint(h.IPv4), endpoint(h.IPv6)
	if h.Name[0] == 'r' {
		v4, v6 = elsewhere(v4), elsewhere(v6)
	}
	return [2]discoveryv1.Endpoint{v4, v6}
}

// applySlices writes a pair of slices of Service web, one for each family, with these endpoints.
func (w *world) applySlices(name string, endpoints ...[2]discoveryv1.Endpoint) {
	w.Helper()
	for f, family := range inet.Families {
		var list []discoveryv1.Endpoint
		for _, e := range endpoints {
			list = append(list, e[f])
		}
		s := slice("web", fmt.Sprintf("web-%s-%d", name, family), list...)
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		w.apply(s)
	}
}

// publishWeb creates Service web with one endpoint.
func (w *world) publishWeb(h *lab.Host) {
	w.Helper()
	w.apply(balanced())
	w.applySlices("a", endpointsOf(h))
}

// testHealth queries the health port from outside, as a cloud's load balancer does.
func testHealth(t *testing.T, w *world, d *daemon) {
	answers := func(healthz, livez int) {
		t.Helper()
		eventually(t, patience, func() error {
			return errors.Join(answer(d, "healthz", healthz), answer(d, "livez", livez))
		})
	}
	answers(http.StatusOK, http.StatusOK)
	leaving := node()
	leaving.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	w.apply(leaving)
	answers(http.StatusServiceUnavailable, http.StatusOK)
	w.apply(node())
	answers(http.StatusOK, http.StatusOK)
}

func answer(d *daemon, path string, want int) error {
	status, body, err := d.get("http://192.0.2.1:10256/" + path)
	if err != nil {
		return err
	}
	var fields struct{ LastUpdated, CurrentTime time.Time }
	if err := json.Unmarshal(body, &fields); err != nil {
		return fmt.Errorf("/%s: %w in %q", path, err, body)
	}
	if status != want || fields.CurrentTime.IsZero() || fields.LastUpdated.IsZero() {
		return fmt.Errorf("/%s: status %d, want %d: %s", path, status, want, body)
	}
	return nil
}

// testMetrics checks the metrics that dashboards use.
func testMetrics(t *testing.T, d *daemon) {
	m := d.awaitIdle(patience)
	now := float64(time.Now().UnixNano()) / 1e9
	tests := []struct {
		name            string
		atLeast, atMost float64
		series          int
	}{
		{"kubeproxy_sync_proxy_rules_duration_seconds_count", 2 * 2, 2 * 200, 2},
		{"kubeproxy_sync_proxy_rules_duration_seconds_sum", 0.0001, 20, 2},
		{"kubeproxy_sync_full_proxy_rules_duration_seconds_count", 2, 20, 2},
		{"kubeproxy_sync_partial_proxy_rules_duration_seconds_count", 2, 2 * 200, 2},
		{"kubeproxy_sync_proxy_rules_last_timestamp_seconds", 2 * (now - 60), 2 * now, 2},
		{"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", 2 * (now - 60), 2 * now, 2},
		{"kubeproxy_sync_proxy_rules_endpoint_changes_pending", 0, 0, 1},
		{"kubeproxy_sync_proxy_rules_service_changes_pending", 0, 0, 1},
		{"kubeproxy_sync_proxy_rules_endpoint_changes_total", 4, 200, 1},
		{"kubeproxy_sync_proxy_rules_service_changes_total", 2, 10, 1},
		{"kubeproxy_sync_proxy_rules_nftables_sync_failures_total", 0, 0, 2},
		{"kubeproxy_sync_proxy_rules_no_local_endpoints_total", 0, 0, 4},
		{"kubeproxy_network_programming_duration_seconds_count", 2, 2 * 200, 2},
		{"kubeproxy_network_programming_duration_seconds_sum", 0.001, 20, 2},
		{"kubeproxy_proxy_healthz_total", 3, 3000, 2},
		{"kubeproxy_proxy_livez_total", 3, 3000, 2},
		{"kubenftproxy_batches_total", 2, 300, 2},
		{"kubenftproxy_batch_elements_sum", 100, 10000, 1},
		{"kubenftproxy_batch_bytes_sum", 1000, 1e6, 1},
		{"kubenftproxy_restarts_adopted_total", 0, 0, 1},
		{"kubenftproxy_rejected_objects", 0, 0, 2},
		{"kubenftproxy_conflicts", 0, 0, 1},
		{"kubenftproxy_class_chains", 2, 100, 2},
		{"process_resident_memory_bytes", 1e6, 200e6, 1},
		{"go_goroutines", 5, 200, 1},
	}
	for _, tt := range tests {
		sum, series := m.Sum(tt.name)
		if series < tt.series || sum < tt.atLeast || sum > tt.atMost {
			t.Errorf("%s: %v in %d series, want %v to %v in %d", tt.name, sum, series, tt.atLeast, tt.atMost, tt.series)
		}
	}
	if elements, series := m.Sum("kubenftproxy_elements"); series < 4 || elements < 20 {
		t.Errorf("kubenftproxy_elements: %v in %d series, want the tables' sets", elements, series)
	}
}
