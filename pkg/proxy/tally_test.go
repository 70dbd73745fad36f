package proxy

import (
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The author of an EndpointSlice writes the time of its change. A time in the future is not measured: the difference
// may exceed a Duration.
func TestChangesInTheFutureAreNotMeasured(t *testing.T) {
	var measured []time.Duration
	c := newChangeTimes(func(_ inet.Family, d time.Duration) { measured = append(measured, d) })
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{end.Add(-time.Second), end, end.Add(time.Millisecond), time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		c.unprogrammed = append(c.unprogrammed, track.Trigger{At: at})
	}
	c.Synced(&Sync{End: end})
	lab.Same(t, []time.Duration{time.Second, 0}, measured, "measured times")
}
