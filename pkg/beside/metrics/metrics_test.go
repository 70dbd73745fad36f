package metrics

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

var reference = filepath.Join("..", "..", "..", "docs", "metrics.md")

// synced passes the outcome of a sync to the metrics of a loop without Services.
func synced(m *Metrics, s *beside.Sync) {
	none := func(inet.Family, func(*nft.Set, int)) int { return 0 }
	NewLoop(m, plan.New(plan.Options{}), none).Synced(s)
}

func setNoLocal(m *Metrics, f inet.Family, internal, external float64) {
	m.noLocalEndpoints.WithLabelValues("internal", f.String()).Set(internal)
	m.noLocalEndpoints.WithLabelValues("external", f.String()).Set(external)
}

// everything calls every method once, so that all vectors have series.
func everything(m *Metrics) {
	end := time.Unix(1_700_000_000, 500_000_000)
	m.Queued(end.Add(-time.Second))
	take(m, 2, 3)
	full := apply.Result{Kind: apply.Full, Bytes: 1 << 20, Elements: 1000, Commit: 2 * time.Millisecond}
	synced(m, &beside.Sync{Start: end.Add(-time.Second), End: end, Result: full})
	partial := apply.Result{Kind: apply.Partial, Bytes: 512, Elements: 3, Commit: 40 * time.Microsecond}
	synced(m, &beside.Sync{Start: end, End: end, Result: partial})
	synced(m, failed(end))
	synced(m, &beside.Sync{First: true, Start: end, End: end, Result: apply.Result{Kind: apply.Adopted}})
	m.Programmed(inet.IPv4, 300*time.Millisecond)
	m.FlowsDeleted(inet.IPv4, time.Millisecond, 7)
	m.HealthAnswered("/healthz", 503)
	m.HealthAnswered("/livez", 200)
	for _, f := range inet.Families {
		setNoLocal(m, f, 1, 2)
		m.Elements(f, "services", 10, 1024)
	}
	m.Rejected("Service", 2)
	m.Leftovers("ipvs", 3)
	m.NodePortCollisions("listener", 1)
	m.NodePortsSearched(nil)
	m.LoopbackListeners(inet.IPv4, 2)
	m.LoopbackNotListening(inet.IPv6)
	m.LoopbackConnections(1)
	m.LoopbackFailed("limit")
}

// take takes changes of Services and of EndpointSlices.
func take(m *Metrics, services, slices int) {
	NewLoop(m, nil, nil).Taken(&track.Dirty{ServiceChanges: services, SliceChanges: slices})
}

// failed is a failed sync.
func failed(end time.Time) *beside.Sync {
	return &beside.Sync{Start: end, End: end, Err: errors.New("no")}
}

// TestPage compares names, types, labels and buckets with a golden file, because dashboards depend on them, and
// updates their page.
func TestPage(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, Config{Version: "v1", Loopback: true})
	everything(m)
	NewTerminations(reg, m).FlowsDeleted(inet.IPv6, 0, 2)
	NewSpreads(reg, m).FlowsDeleted(inet.IPv4, 0, 3)
	counts := placed()
	RegisterServices(reg, counts, 100)
	RegisterLoopback(reg, inet.Families[:1], func(inet.Family) (map[inet.Protocol]uint64, error) {
		return map[inet.Protocol]uint64{inet.UDP: 1}, nil
	})
	RegisterDemand(reg, func(f func(service types.NamespacedName, wanted bool)) {
		f(types.NamespacedName{Namespace: "shop", Name: "web"}, true)
	})
	RegisterClients(reg, func() []affinity.State {
		return []affinity.State{
			{Family: inet.IPv4, Clients: 7, Limit: 1600, Forgotten: 2}, {Family: inet.IPv6, Clients: -1, Limit: 1600},
		}
	})
	for _, prefix := range []string{"kubeproxy", "kubenftproxy"} {
		want := tableOf(t, reg, prefix+"_")
		if *update {
			lab.Must(t, page.Write(reference, prefix, want))
		}
		text, err := os.ReadFile(reference)
		lab.Must(t, err)
		got, err := page.Part(string(text), prefix)
		if err != nil {
			t.Fatalf("%s: %v", reference, err)
		}
		lab.Same(t, got, want, "%s is not what the program has; run make update (-page +program)", reference)
	}
}

// tableOf returns the metrics with a prefix in the format of the page.
func tableOf(t *testing.T, g prometheus.Gatherer, prefix string) string {
	t.Helper()
	families, err := g.Gather()
	lab.Must(t, err)
	var b strings.Builder
	b.WriteString("\n| metric | type | labels | what it is |\n|---|---|---|---|\n")
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		text := f.GetHelp()
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			bounds := h.GetBucket()
			text += fmt.Sprintf(" %d buckets, %v to %v.", len(bounds), bounds[0].GetUpperBound(), bounds[len(bounds)-1].GetUpperBound())
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labelsOf(f), ", "), text)
	}
	return b.String() + "\n"
}

func labelsOf(f *dto.MetricFamily) []string {
	names := []string{}
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	return names
}

// describe returns one line for each metric: its name, its type and its labels.
func describe(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	families, err := g.Gather()
	lab.Must(t, err)
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintf(&b, "%s %s {%s}\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labelsOf(f), ","))
	}
	return b.String()
}

func TestLint(t *testing.T) {
	// The name of this gauge in kube-proxy ends like a counter's. Dashboards depend on it.
	fixed := map[string]string{
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total": `non-counter metrics should not have "_total" suffix`,
	}
	reg := prometheus.NewPedanticRegistry()
	everything(New(reg, Config{Version: "v1"}))
	counts := placed()
	RegisterServices(reg, counts, 100)
	problems, err := testutil.GatherAndLint(reg)
	lab.Must(t, err)
	got := map[string]string{}
	for _, p := range problems {
		got[p.Metric] = p.Text
	}
	lab.Same(t, fixed, got, "lint")
}

// TestFromTheStart checks that series for which alerts use rate() exist from the start.
func TestFromTheStart(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	New(reg, Config{Version: "v1"})
	RegisterServices(reg, busy(0), 100)
	lines := func(reg *prometheus.Registry) []string { // some timestamps and numbers are absent before their first value
		return slices.DeleteFunc(strings.Split(strings.TrimSpace(describe(t, reg)), "\n"), func(line string) bool {
			return strings.Contains(line, "timestamp_seconds") || strings.Contains(line, "_elements gauge ")
		})
	}
	used := prometheus.NewPedanticRegistry()
	everything(New(used, Config{Version: "v1"}))
	RegisterServices(used, busy(0), 100)
	lab.Same(t, lines(used), lines(reg), "metrics at start")
}

func TestValues(t *testing.T) {
	const (
		failures   = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
		lastSync   = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
		queued     = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
		pending    = "kubeproxy_sync_proxy_rules_service_changes_pending"
		total      = "kubeproxy_sync_proxy_rules_service_changes_total"
		epsPending = "kubeproxy_sync_proxy_rules_endpoint_changes_pending"
		noLocal    = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
		batches    = "kubenftproxy_batches_total"
	)
	at := time.Unix(100, 500_000_000)
	tests := []struct {
		name     string
		families []inet.Family
		do       func(*Metrics)
		metric   string
		want     map[string]float64
	}{
		{"a failure counts for both families", nil,
			func(m *Metrics) { synced(m, failed(at)) },
			failures, map[string]float64{"IPv4": 1, "IPv6": 1}},
		{"only the families served", []inet.Family{inet.IPv6},
			func(m *Metrics) { synced(m, failed(at)) },
			failures, map[string]float64{"IPv6": 1}},
		{"time of a success", nil,
			func(m *Metrics) { synced(m, &beside.Sync{Start: at, End: at}) },
			lastSync, map[string]float64{"IPv4": 100.5, "IPv6": 100.5}},
		{"a failure has no time", nil,
			func(m *Metrics) { synced(m, failed(at)) },
			lastSync, map[string]float64{}},
		{"time of a request", nil,
			func(m *Metrics) { m.Queued(at) },
			queued, map[string]float64{"IPv4": 100.5, "IPv6": 100.5}},
		{"changes add up", nil,
			func(m *Metrics) { take(m, 2, 0); take(m, 3, 0) },
			pending, map[string]float64{"": 5}},
		{"a failure leaves changes pending", nil,
			func(m *Metrics) { take(m, 2, 3); synced(m, failed(at)) },
			epsPending, map[string]float64{"": 3}},
		{"a success takes them up", nil,
			func(m *Metrics) { take(m, 2, 3); synced(m, &beside.Sync{Start: at, End: at}) },
			epsPending, map[string]float64{"": 0}},
		{"services likewise", nil,
			func(m *Metrics) { take(m, 2, 3); synced(m, &beside.Sync{Start: at, End: at}) },
			pending, map[string]float64{"": 0}},
		{"a success leaves changes pending while Services wait", nil,
			func(m *Metrics) { take(m, 2, 3); synced(m, &beside.Sync{End: at, Waiting: true}) },
			epsPending, map[string]float64{"": 3}},
		{"the total stays", nil,
			func(m *Metrics) { take(m, 2, 3); synced(m, &beside.Sync{Start: at, End: at}) },
			total, map[string]float64{"": 2}},
		{"no local endpoints", nil,
			func(m *Metrics) { setNoLocal(m, inet.IPv4, 3, 4) },
			noLocal, map[string]float64{
				"IPv4,internal": 3, "IPv4,external": 4, "IPv6,internal": 0, "IPv6,external": 0,
			}},
		{"batches by kind", nil,
			func(m *Metrics) {
				for _, kind := range []apply.Kind{apply.Full, apply.Partial, apply.Partial, apply.Nothing, apply.Adopted} {
					synced(m, &beside.Sync{Start: at, End: at, Result: apply.Result{Kind: kind}})
				}
			},
			batches, map[string]float64{"full": 1, "partial": 2}},
		{"only a start adopts", nil,
			func(m *Metrics) {
				for _, first := range []bool{true, false} {
					synced(m, &beside.Sync{First: first, Start: at, End: at, Result: apply.Result{Kind: apply.Adopted}})
				}
			},
			"kubenftproxy_restarts_adopted_total", map[string]float64{"": 1}},
		{"a comparison is a full sync", nil,
			func(m *Metrics) {
				synced(m, &beside.Sync{Start: at.Add(-3 * time.Second), End: at, Result: apply.Result{Kind: apply.Adopted}})
			},
			"kubeproxy_sync_full_proxy_rules_duration_seconds", map[string]float64{"IPv4": 3, "IPv6": 3}},
		{"answers by code", nil,
			func(m *Metrics) { m.HealthAnswered("/healthz", 503) },
			"kubeproxy_proxy_healthz_total", map[string]float64{"200": 0, "503": 1}},
		{"a slice is of one family", nil,
			func(m *Metrics) { m.Programmed(inet.IPv6, 3*time.Second) },
			"kubeproxy_network_programming_duration_seconds", map[string]float64{"IPv4": 0, "IPv6": 3}},
		{"and of none that isn't served", []inet.Family{inet.IPv4},
			func(m *Metrics) { m.Programmed(inet.IPv6, 3*time.Second) },
			"kubeproxy_network_programming_duration_seconds", map[string]float64{"IPv4": 0}},
		{"a check that agrees", nil,
			func(m *Metrics) { m.Doubted(); m.Checked(beside.Period, false) },
			"kubenftproxy_repairs_total", map[string]float64{"failed_sync": 0, "foreign_change": 0, "period": 0}},
		{"is a check", nil,
			func(m *Metrics) { m.Doubted(); m.Checked(beside.Period, false) },
			"kubenftproxy_checks_total", map[string]float64{"failed_sync": 0, "foreign_change": 0, "period": 1}},
		{"a check that repairs", nil,
			func(m *Metrics) { m.Doubted(); m.Checked(beside.ForeignChange, true) },
			"kubenftproxy_repairs_total", map[string]float64{"failed_sync": 0, "foreign_change": 1, "period": 0}},
		{"doubt is drift", nil,
			func(m *Metrics) { m.Doubted() },
			"kubenftproxy_drift", map[string]float64{"": 1}},
		{"until a sync succeeds", nil,
			func(m *Metrics) { m.Doubted(); m.Checked(beside.FailedSync, true) },
			"kubenftproxy_drift", map[string]float64{"": 0}},
		{"searches for flows", nil,
			func(m *Metrics) { m.FlowsSearched(inet.IPv4, nil); m.FlowsSearched(inet.IPv6, errors.New("no")) },
			"kubenftproxy_conntrack_passes_total", map[string]float64{"IPv4,done": 1, "IPv4,failed": 0, "IPv6,done": 0, "IPv6,failed": 1}},
		{"full syncs", nil,
			func(m *Metrics) {
				synced(m, &beside.Sync{Start: at.Add(-2 * time.Second), End: at, Result: apply.Result{Kind: apply.Full}})
				synced(m, &beside.Sync{Start: at, End: at})
			},
			"kubeproxy_sync_full_proxy_rules_duration_seconds", map[string]float64{"IPv4": 2, "IPv6": 2}},
		{"failed syncs have a duration too", nil,
			func(m *Metrics) {
				synced(m, &beside.Sync{Start: at, End: at.Add(2 * time.Second), Err: errors.New("no")})
			},
			"kubeproxy_sync_proxy_rules_duration_seconds", map[string]float64{"IPv4": 2, "IPv6": 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			tt.do(New(reg, Config{Families: tt.families}))
			lab.Same(t, tt.want, values(t, reg, tt.metric), "%s", tt.metric)
		})
	}
}

// values returns the series of one metric by label values. The value of a histogram is its sum.
func values(t *testing.T, g prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	lab.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got[strings.Join(labels, ",")] = s.GetCounter().GetValue() + s.GetGauge().GetValue() +
				s.GetHistogram().GetSampleSum()
		}
	}
	return got
}

func TestBuckets(t *testing.T) {
	durations := durationBuckets()
	for _, b := range prometheus.ExponentialBuckets(0.001, 2, 15) {
		if !slices.Contains(durations, b) {
			t.Errorf("durationBuckets lacks kube-proxy's bound %v", b)
		}
	}
	if first, last := durations[0], durations[len(durations)-1]; first > 0.00001 || last < 1000 {
		t.Errorf("durationBuckets: got %v to %v, want 0.00001 or less to 1000 or more", first, last)
	}
	programming := programmingBuckets()
	if got := len(programming); got != 81 {
		t.Errorf("programmingBuckets: got %d bounds, want 81", got)
	}
	for _, b := range [][]float64{durations, programming} {
		if !slices.IsSorted(b) {
			t.Errorf("bounds are not sorted: %v", b)
		}
	}
	for _, want := range []float64{0, 0.25, 0.5, 1, 59, 60, 65, 115, 120, 150, 300} {
		if !slices.Contains(programming, want) {
			t.Errorf("programmingBuckets lacks %v", want)
		}
	}
}

// TestRegisterProcess checks the names that the kubernetes-mixin's dashboard uses.
func TestRegisterProcess(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg, Config{Version: "v1"})
	RegisterProcess(reg)
	got := describe(t, reg)
	for _, want := range []string{
		"process_resident_memory_bytes gauge {}", "process_cpu_seconds_total counter {}", "go_goroutines gauge {}",
		"process_start_time_seconds gauge {}", "go_sched_latencies_seconds histogram {}",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("registry lacks %q", want)
		}
	}
}

// TestNativeHistograms checks that histograms have both kinds of buckets with the feature gate, and no native ones
// without.
func TestNativeHistograms(t *testing.T) {
	for _, native := range []bool{false, true} {
		reg := prometheus.NewPedanticRegistry()
		everything(New(reg, Config{NativeHistograms: native}))
		families, err := reg.Gather()
		lab.Must(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				h := m.GetHistogram()
				if h == nil {
					continue
				}
				if got := h.Schema != nil; got != native {
					t.Errorf("%s has native buckets: %t, want %t", f.GetName(), got, native)
				}
				if len(h.GetBucket()) == 0 {
					t.Errorf("%s has no buckets of its own", f.GetName())
				}
			}
		}
	}
}

func TestRegisterFeatures(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	RegisterFeatures(reg, []Feature{{Name: "A", Stage: "BETA", Enabled: true}, {Name: "B"}})
	want := map[string]float64{"A,BETA": 1, "B,": 0}
	lab.Same(t, want, values(t, reg, "kubernetes_feature_enabled"), "features")
}
