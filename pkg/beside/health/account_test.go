package health

import (
	"testing"
	"time"
)

func TestAccount(t *testing.T) {
	now := time.Unix(1000, 0)
	h := New(Config{Timeout: time.Minute, Now: func() time.Time { return now }})
	h.Updated(now)
	if got, want := h.Account(), (Account{Healthy: true, Updated: now}); got != want {
		t.Errorf("at the start: %+v, want %+v", got, want)
	}
	start := now
	h.Queued(now)
	now = now.Add(time.Minute)
	if got, want := h.Account(), (Account{Updated: start, Pending: start}); got != want {
		t.Errorf("a minute after a sync was requested: %+v, want %+v", got, want)
	}
}
