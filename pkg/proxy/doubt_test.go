package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// count returns the series of a metric with at most one label, by the label's value.
func count(t *testing.T, g prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	lab.Must(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			label := ""
			for _, l := range m.GetLabel() {
				label = l.GetValue()
			}
			if value := m.GetCounter().GetValue() + m.GetGauge().GetValue(); value != 0 {
				values[label] = value
			}
		}
	}
	return values
}

// TestDoubtsAreCounted follows the metrics through foreign changes, quiet times and failures.
func TestDoubtsAreCounted(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		synctest.Wait()
		expect := func(when string, drift float64, checks, repairs map[string]float64) {
			t.Helper()
			synctest.Wait()
			got := []map[string]float64{count(t, b.registry, "kubenftproxy_checks_total"), count(t, b.registry, "kubenftproxy_repairs_total")}
			lab.Same(t, []map[string]float64{checks, repairs}, got, "%s: checks and repairs", when)
			lab.Same(t, drift, count(t, b.registry, "kubenftproxy_drift")[""], "%s: drift", when)
		}
		meddle := func(harmless bool, fail error) {
			b.kernel.mu.Lock()
			b.kernel.meddled, b.kernel.asWanted, b.kernel.fail = true, harmless, func(int) error { return fail }
			b.kernel.mu.Unlock()
			time.Sleep(2 * time.Second)
		}
		type counts = map[string]float64
		expect("at the start", 0, counts{}, counts{})
		meddle(true, nil)
		expect("after a harmless change", 0, counts{"foreign_change": 1}, counts{})
		meddle(false, nil)
		expect("after a change of the program's tables", 0, counts{"foreign_change": 2}, counts{"foreign_change": 1})
		meddle(false, errors.New("no"))
		expect("while the repair fails", 1, counts{"foreign_change": 2}, counts{"foreign_change": 1})
		meddle(false, nil)
		time.Sleep(10 * time.Second)
		expect("after the repair", 0, counts{"foreign_change": 3}, counts{"foreign_change": 2})
		b.kernel.mu.Lock()
		b.kernel.asWanted, b.kernel.fail = true, func(n int) error {
			if n == b.kernel.syncs && b.kernel.known {
				return errors.New("refused")
			}
			return nil
		}
		b.kernel.mu.Unlock()
		b.set(1, 2)
		time.Sleep(5 * time.Second)
		expect("after a change that was refused once", 0, counts{"foreign_change": 3, "failed_sync": 1}, counts{"foreign_change": 2})
		time.Sleep(31 * time.Second)
		expect("after a quiet time", 0, counts{"foreign_change": 3, "failed_sync": 1, "period": 1}, counts{"foreign_change": 2})
	})
}
