package health

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestReadyz: /readyz fails until the first successful sync, and while a sync is overdue. A source that is away
// requests no sync, so it has no effect.
func TestReadyz(t *testing.T) {
	const reason = "WaitingForObjects: nothing is programmed yet"
	for _, tt := range []struct {
		name, from string
		do         func(*Health)
		asked      time.Duration
		code       int
		body       string
	}{
		{"before the loop", "127.0.0.1:1", func(*Health) {}, 0, http.StatusServiceUnavailable, "not ready\n" + reason + "\n"},
		{"before the first sync", "[::1]:1", func(h *Health) { h.Updated(start) }, timeout, http.StatusServiceUnavailable, "not ready\n" + reason + "\n"},
		{"no reasons for other machines", "192.0.2.1:1", func(*Health) {}, 0, http.StatusServiceUnavailable, "not ready; query 127.0.0.1 on the node for the reason\n"},
		{"another instance serves since the start", "127.0.0.1:1", func(h *Health) {
			h.Queued(start)
			h.Updated(start)
		}, 0, http.StatusServiceUnavailable, "not ready\n" + reason + "\n"},
		{"after the first sync", "192.0.2.1:1", func(h *Health) { h.RecordSync(start) }, 1000 * time.Hour, http.StatusOK, "ok\n"},
		{"another instance serves since a sync", "127.0.0.1:1", func(h *Health) {
			h.RecordSync(start)
			h.Updated(start)
		}, timeout, http.StatusOK, "ok\n"},
		{"a Node that is being deleted", "127.0.0.1:1", func(h *Health) {
			h.RecordSync(start)
			h.Node(leaving())
		}, 0, http.StatusOK, "ok\n"},
		{"a sync is due", "127.0.0.1:1", func(h *Health) {
			h.RecordSync(start)
			h.Queued(start)
		}, timeout - 1, http.StatusOK, "ok\n"},
		{"a sync is overdue", "127.0.0.1:1", func(h *Health) {
			h.RecordSync(start)
			h.Queued(start)
		}, timeout, http.StatusServiceUnavailable, "not ready\n" + reason + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := New(Config{Timeout: timeout, Now: func() time.Time { return start.Add(tt.asked) }, Reasons: func(context.Context) []string { return []string{reason} }})
			tt.do(h)
			r, w := httptest.NewRequest(http.MethodGet, "/readyz", nil), httptest.NewRecorder()
			r.RemoteAddr = tt.from
			h.Handler().ServeHTTP(w, r)
			if w.Code != tt.code || w.Body.String() != tt.body {
				t.Errorf("status %d: %q, want %d: %q", w.Code, w.Body, tt.code, tt.body)
			}
		})
	}
}
