package metrics

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The author of an EndpointSlice writes the time of its change. A time in the future is not measured: the difference
// may exceed a Duration. A change is measured once, after the sync that has planned its Service.
func TestTimesOfChanges(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := NewLoop(New(reg, Config{}), nil, nil)
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	var triggers []track.Trigger
	for _, at := range []time.Time{end.Add(-time.Second), end, end.Add(time.Millisecond), time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		triggers = append(triggers, track.Trigger{At: at})
	}
	expect := func(when string, count uint64, sum float64) {
		t.Helper()
		families, err := reg.Gather()
		lab.Must(t, err)
		for _, f := range families {
			if f.GetName() == "kubeproxy_network_programming_duration_seconds" {
				h := f.GetMetric()[0].GetHistogram()
				if h.GetSampleCount() != count || h.GetSampleSum() != sum {
					t.Errorf("%s: %d times, together %vs; want %d and %v", when, h.GetSampleCount(), h.GetSampleSum(), count, sum)
				}
				return
			}
		}
		t.Error("no metric")
	}
	synced := &beside.Sync{End: end, Result: apply.Result{Kind: apply.Nothing}}
	l.Taken(&track.Dirty{Triggers: map[types.NamespacedName][]track.Trigger{name: triggers}})
	l.Synced(synced)
	expect("before the Service is planned", 0, 0)
	l.Planned(name)
	l.Synced(&beside.Sync{End: end, Err: errors.New("no")})
	expect("after a failed sync", 0, 0)
	l.Synced(synced)
	expect("after the sync", 2, 1)
	l.Synced(synced)
	expect("after another sync", 2, 1)
}

// While syncs fail, the times of changes take bounded memory.
func TestTimesOfChangesAreBounded(t *testing.T) {
	l := NewLoop(New(prometheus.NewRegistry(), Config{}), nil, nil)
	tracker := track.New(time.Now(), time.Now)
	for range 100 {
		for i := range 30 {
			name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
			for range 10 {
				tracker.MarkSlice(name, track.Trigger{At: time.Now()})
			}
		}
		dirty := tracker.Take()
		l.Taken(&dirty)
		for name := range dirty.Services {
			l.Planned(name)
		}
		l.Synced(&beside.Sync{Err: errors.New("no")})
	}
	lab.Same(t, mostUnprogrammed, len(l.unprogrammed), "times are kept")
	l.Synced(&beside.Sync{End: time.Now(), Result: apply.Result{Kind: apply.Nothing}})
	lab.Same(t, 0, len(l.unprogrammed)+len(l.triggers), "times are kept after a sync has succeeded")
}
