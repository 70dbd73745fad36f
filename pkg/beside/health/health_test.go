package health

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const timeout = time.Minute

// clock is a time that the test sets.
type clock struct{ now time.Time }

// counts holds the status codes by path.
type counts map[string][]int

func (c counts) answered(path string, code int) { c[path] = append(c[path], code) }

func node(taints ...string) *corev1.Node {
	n := &corev1.Node{}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func leaving() *corev1.Node {
	n := node()
	n.DeletionTimestamp = &metav1.Time{Time: start}
	return n
}

func TestCodes(t *testing.T) {
	const ok, bad = http.StatusOK, http.StatusServiceUnavailable
	at := func(d time.Duration) time.Time { return start.Add(d) }
	tests := []struct {
		name           string
		noNode         bool
		do             func(*Health)
		asked          time.Duration
		healthz, livez int
	}{
		{"idle for a long time", false, func(h *Health) { h.Node(node()) }, 1000 * time.Hour, ok, ok},
		{"before the first sync", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
		}, timeout - 1, ok, ok},
		{"first sync overdue", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
		}, timeout, bad, bad},
		{"the oldest request counts", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
			h.Queued(at(timeout - 1))
		}, timeout, bad, bad},
		{"synced in time", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
			h.RecordSync(at(1))
		}, 2 * timeout, ok, ok},
		{"a new request after a sync", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
			h.Updated(at(1))
			h.Queued(at(2))
		}, timeout + 1, ok, ok},
		{"a new request after a sync is overdue", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
			h.Updated(at(1))
			h.Queued(at(2))
		}, timeout + 2, bad, bad},
		{"an overdue sync succeeds", false, func(h *Health) {
			h.Node(node())
			h.Queued(at(0))
			h.Updated(at(2 * timeout))
		}, 2 * timeout, ok, ok},
		{"node unknown", false, func(*Health) {}, 0, bad, ok},
		{"node not tracked", true, func(*Health) {}, 0, ok, ok},
		{"node not tracked, but leaving", true, func(h *Health) { h.Node(leaving()) }, 0, ok, ok},
		{"node not tracked but overdue", true, func(h *Health) { h.Queued(at(0)) }, timeout, bad, bad},
		{"other taints", false, func(h *Health) { h.Node(node("node.kubernetes.io/unschedulable")) }, 0, ok, ok},
		{"autoscaler's taint", false, func(h *Health) {
			h.Node(node("a", "ToBeDeletedByClusterAutoscaler"))
		}, 0, bad, ok},
		{"taint removed", false, func(h *Health) {
			h.Node(node("ToBeDeletedByClusterAutoscaler"))
			h.Node(node())
		}, 0, ok, ok},
		{"node being deleted", false, func(h *Health) { h.Node(leaving()) }, 0, bad, ok},
		{"a deleted node stays eligible", false, func(h *Health) {
			h.Node(node())
			h.Node(nil)
		}, 0, ok, ok},
		{"a deleted node stays ineligible", false, func(h *Health) {
			h.Node(leaving())
			h.Node(nil)
		}, 0, bad, ok},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, n := clock{start}, counts{}
			h := New(Config{
				Timeout: timeout, Now: func() time.Time { return c.now }, Families: inet.Families[:],
				NoNode: tt.noNode, Answered: n.answered,
			})
			h.Updated(c.now)
			tt.do(h)
			c.now = at(tt.asked)
			got := counts{}
			for _, path := range []string{"/healthz", "/livez"} {
				got[path] = []int{ask(h.Handler(), http.MethodGet, path).Code}
			}
			want := counts{"/healthz": {tt.healthz}, "/livez": {tt.livez}}
			lab.Same(t, want, got, "codes")
			lab.Same(t, want, n, "counted")
			lab.Same(t, tt.livez == ok, h.Healthy(), "Healthy")
		})
	}
}

// ask sends a request to a handler and returns the response.
func ask(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

func TestBodies(t *testing.T) {
	tests := []struct {
		name     string
		families []inet.Family
		do       func(*Health)
		path     string
		want     string
	}{
		{"healthy: lastUpdated is now", inet.Families[:], func(h *Health) {
			h.Node(node())
			h.Updated(start)
		}, "/healthz", `{"lastUpdated":"2026-01-02T03:05:05.5Z","currentTime":"2026-01-02T03:05:05.5Z",` +
			`"nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true},` +
			`"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`},
		{"livez has no nodeEligible", []inet.Family{inet.IPv6}, func(h *Health) {
			h.Updated(start)
		}, "/livez", `{"lastUpdated":"2026-01-02T03:05:05.5Z","currentTime":"2026-01-02T03:05:05.5Z",` +
			`"healthy":true,"status":{"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`},
		{"not eligible though healthy: lastUpdated is the sync's", []inet.Family{inet.IPv4}, func(h *Health) {
			h.Updated(start)
		}, "/healthz", `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:05:05.5Z",` +
			`"nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`},
		{"overdue", []inet.Family{inet.IPv4}, func(h *Health) {
			h.Updated(start)
			h.Queued(start)
		}, "/livez", `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:05:05.5Z",` +
			`"healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false}}}`},
		{"before the loop", inet.Families[:], func(*Health) {}, "/livez",
			`{"lastUpdated":"2026-01-02T03:05:05.5Z","currentTime":"2026-01-02T03:05:05.5Z","healthy":true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := start.Add(timeout + 500*time.Millisecond)
			h := New(Config{Timeout: timeout, Now: func() time.Time { return now }, Families: tt.families})
			tt.do(h)
			w := ask(h.Handler(), http.MethodPost, tt.path)
			lab.Same(t, tt.want, w.Body.String(), "body")
			want := http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}}
			lab.Same(t, want, w.Header(), "headers")
		})
	}
}

func TestOtherPaths(t *testing.T) {
	h := New(Config{Timeout: timeout, Now: time.Now})
	for _, path := range []string{"/", "/healthz/", "/metrics"} {
		lab.Same(t, http.StatusNotFound, ask(h.Handler(), http.MethodGet, path).Code, "%s", path)
	}
}
