//go:build twin

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	names "github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestMetricsAreThoseOfKubeProxy makes the same changes for both programs, one after the other on the same cluster, and compares
// names, types, labels, buckets and values of their metrics.
func TestMetricsAreThoseOfKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 1})
	var seen [2]scrapes
	for i, path := range bothPrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) { seen[i] = lived(asked{world: w, path: path, theirs: i == 0}.in(t)) })
	}
	if t.Failed() {
		return
	}
	theirs, ours := seen[0], seen[1]
	compareForms(t, theirs.end, ours.end)
	compareValues(t, theirs, ours)
	t.Run("native histograms", func(t *testing.T) { compareNative(t, theirs.native, ours.native) })
	t.Run("mixin", func(t *testing.T) { mixin(t, theirs.end, ours.end) })
	t.Run("lint", func(t *testing.T) { lint(t, ours.text) })
	t.Run("cardinality", func(t *testing.T) { cardinality(t, ours) })
}

// families are the metrics of one scrape by their names.
type families map[string]*dto.MetricFamily

// scrapes are the metrics of one run of a program: after the first sync, and at the end, as text and in the binary form.
type scrapes struct {
	started            time.Time
	first, end, native families
	text               []byte
}

// lived runs the program through some changes, and reads its metrics. The end state equals the initial one.
func lived(a asked) (s scrapes) {
	local, open, plain := a.objectsWithPolicies()
	defer a.delete(local, open, plain)
	a.apply(local, open, plain)
	slices := a.endpointsElsewhere()
	for _, s := range slices {
		a.apply(s)
		defer a.delete(s)
	}
	p := a.run("--feature-gates=WatchListClient=false,NativeHistograms=true") // kube-proxy then uses lists, too
	s.started = p.Started()
	p.Synced(a)
	s.first, _ = a.gather(p)
	a.changes(p, local, plain)
	a.ask(p)
	eventually(a, patience, func() error { // conntrack is reconciled beside the syncs
		m, err := p.Metrics(a.Context())
		if n, _ := m.Sum("kubeproxy_conntrack_reconciler_sync_duration_seconds_count"); err == nil && n == 0 {
			return errors.New("there has been no pass over the connection tracking table")
		}
		return err
	})
	s.end, s.text = a.gather(p)
	s.native = a.binary(p)
	a.loseTables(p, s.end)
	return s
}

// loseTables deletes all tables. kube-proxy fails at the next change, and its failure metric is added to those at the end;
// kube-nftproxy repairs its tables without a change.
func (a asked) loseTables(p *proxy.Program, end families) {
	nft(a, a.Node, "flush ruleset")
	name, labels := "kubenftproxy_repairs_total", "reason=foreign_change"
	if a.theirs {
		name, labels = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "ip_family=IPv4"
		a.apply(slice("plain", "plain-1", endpoint(a.Pods[0].IPv4)))
	}
	eventually(a, patience, func() error {
		now, _ := a.gather(p)
		if n := valuesOf(now[name])[labels]; n != 1 {
			return fmt.Errorf("%s{%s} is %v, want 1", name, labels, n)
		}
		if a.theirs {
			end[name] = now[name]
		}
		return nil
	})
}

// objectsWithPolicies returns Services with policy Local for internal and for external traffic, and one without.
func (a asked) objectsWithPolicies() (local, open, plain *corev1.Service) {
	policy := corev1.ServiceInternalTrafficPolicyLocal
	local, open, plain = service("local"), checked(checkPort), service("plain")
	local.Spec.InternalTrafficPolicy = &policy
	return local, open, plain
}

// endpointsElsewhere returns slices of all those Services, without any endpoint on this node.
func (a asked) endpointsElsewhere() []*discoveryv1.EndpointSlice {
	remote := func(f inet.Family) discoveryv1.Endpoint { return elsewhere(endpoint(a.Remotes[0].Addrs()[f])) }
	return []*discoveryv1.EndpointSlice{
		slice("local", "local-1", remote(inet.IPv4)), slice("plain", "plain-1", remote(inet.IPv4)),
		slice("web", "web-4", remote(inet.IPv4)), slice("web", "web-6", remote(inet.IPv6)),
	}
}

// triggered sets the time of a change in a slice to now, as the controller does.
func triggered(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, corev1.EndpointsLastChangeTriggerTime, time.Now().Format(time.RFC3339Nano))
	return s
}

// changes makes changes of all kinds, each of which is programmed before the next.
func (a asked) changes(p *proxy.Program, local, plain *corev1.Service) {
	pod := func(f inet.Family) discoveryv1.Endpoint { return endpoint(a.Pods[0].Addrs()[f]) }
	second := slice("plain", "plain-2", pod(inet.IPv4))
	everywhere := corev1.ServiceInternalTrafficPolicyCluster
	added := service("added")
	for _, step := range []struct {
		family inet.Family
		change func()
	}{
		{inet.IPv4, func() { a.apply(triggered(second)) }},
		{inet.IPv4, func() {
			a.apply(triggered(slice("plain", "plain-2", pod(inet.IPv4), elsewhere(endpoint(a.Remotes[0].IPv4)))))
		}},
		{inet.IPv6, func() { a.apply(triggered(slice("web", "web-7", elsewhere(endpoint(a.Remotes[0].IPv6.Next()))))) }},
		{inet.IPv4, func() { a.delete(second) }},
		{inet.IPv6, func() { a.delete(slice("web", "web-7")) }},
		{inet.IPv4, func() { a.apply(added) }},
		{inet.IPv4, func() { a.delete(added) }},
		{inet.IPv4, func() {
			changed := local.DeepCopy()
			changed.Spec.InternalTrafficPolicy = &everywhere
			a.apply(changed)
		}},
	} {
		before := time.Now()
		step.change()
		if _, err := p.AwaitSync(a.Context(), before, step.family); err != nil {
			a.Fatal(err)
		}
	}
}

// ask queries the health port, also while the node is being deleted.
func (a asked) ask(p *proxy.Program) {
	status := func(path string, want int) {
		eventually(a, patience, func() error {
			if got, body, err := p.Get(a.Context(), "http://127.0.0.1:10256"+path); err != nil || got != want {
				return fmt.Errorf("%s: status %d, %w, want %d: %s", path, got, err, want, body)
			}
			return nil
		})
	}
	status("/healthz", http.StatusOK)
	doomed := node()
	doomed.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	a.apply(doomed)
	defer a.apply(node())
	status("/healthz", http.StatusServiceUnavailable)
	status("/livez", http.StatusOK)
}

const metricsPage = "http://127.0.0.1:10249/metrics"

// gather reads /metrics in the text format.
func (a asked) gather(p *proxy.Program) (families, []byte) {
	a.Helper()
	_, text, err := p.Get(a.Context(), metricsPage)
	must(a, err)
	parser := expfmt.NewTextParser(names.UTF8Validation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	must(a, err)
	return found, text
}

// binary reads /metrics in the format with native histograms.
func (a asked) binary(p *proxy.Program) families {
	a.Helper()
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	answer := a.request(http.MethodGet, metricsPage, http.Header{"Accept": {string(format)}}, nil)
	found := families{}
	decoder := expfmt.NewDecoder(strings.NewReader(answer.body), expfmt.ResponseFormat(answer.header))
	for {
		var f dto.MetricFamily
		if err := decoder.Decode(&f); err != nil {
			break // at the end
		}
		found[f.GetName()] = &f
	}
	if len(found) < 100 {
		a.Fatalf("%s in the binary form has %d metrics: %v", p, len(found), answer.header)
	}
	return found
}

// rareTheirs is a metric of kube-proxy that has no series before the kernel first rejects the deletion of a chain. kube-nftproxy
// has one from the start.
const rareTheirs = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total"

// compareForms compares names, types, labels and buckets. docs/metrics.md explains the exceptions.
func compareForms(t *testing.T, theirs, ours families) {
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if notOurs.MatchString(name) {
			continue
		}
		their, our := theirs[name], ours[name]
		if our == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		if their.GetType() != our.GetType() {
			t.Errorf("%s is a %s, with kube-proxy a %s", name, our.GetType(), their.GetType())
		}
		lab.Same(t, labelsOf(their), labelsOf(our), "%s: labels (-kube-proxy +ours)", name)
		compareBuckets(t, name, bucketsOf(their), bucketsOf(our))
	}
	for name := range ours {
		if strings.HasPrefix(name, "kubeproxy_") && theirs[name] == nil && name != rareTheirs {
			t.Errorf("%s: kube-proxy has no such metric", name)
		}
	}
	if n := len(theirs); n < 100 {
		t.Errorf("kube-proxy has only %d metrics", n)
	}
}

// extended are the histograms with longer and shorter times than kube-proxy's.
var extended = regexp.MustCompile(`^kubeproxy_(sync_(full_|partial_)?proxy_rules|conntrack_reconciler_sync)_duration_seconds$`)

func compareBuckets(t *testing.T, name string, theirs, ours []float64) {
	t.Helper()
	if !extended.MatchString(name) {
		lab.Same(t, theirs, ours, "%s: buckets (-kube-proxy +ours)", name)
		return
	}
	for _, bound := range theirs {
		if !slices.Contains(ours, bound) {
			t.Errorf("%s: there is no bucket %v", name, bound)
		}
	}
	if len(ours) <= len(theirs) || slices.Max(ours[:len(ours)-1]) < 600 {
		t.Errorf("%s: buckets %v show nothing that kube-proxy's %v don't", name, ours, theirs)
	}
}

func labelsOf(f *dto.MetricFamily) []string {
	found := map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			found[l.GetName()] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func bucketsOf(f *dto.MetricFamily) []float64 {
	var bounds []float64
	for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
		bounds = append(bounds, b.GetUpperBound())
	}
	return bounds
}

// compareValues compares the values of all proxy metrics that should be equal.
func compareValues(t *testing.T, theirs, ours scrapes) {
	const (
		equal    = "equal"
		halved   = "halved"   // kube-proxy counts once for each family
		positive = "positive" // depends on timing or implementation
		recent   = "recent"   // a time during this run
		provoked = "provoked" // a provoked failure of kube-proxy
	)
	rules := map[string]string{
		"kubeproxy_sync_proxy_rules_duration_seconds":              positive,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":         equal,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":      positive,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds":        recent,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": recent,
		"kubeproxy_network_programming_duration_seconds":           equal,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":      equal,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":        equal,
		"kubeproxy_sync_proxy_rules_service_changes_pending":       equal,
		"kubeproxy_sync_proxy_rules_service_changes_total":         halved,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total":      equal,
		"kubeproxy_conntrack_reconciler_sync_duration_seconds":     positive,
		"kubeproxy_conntrack_reconciler_deleted_entries_total":     equal,
		"kubeproxy_proxy_livez_total":                              equal,
		"kubeproxy_proxy_healthz_total":                            positive,
		"kubernetes_feature_enabled":                               equal,
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total":  provoked,
	}
	for name, rule := range rules {
		their, our := valuesOf(theirs.end[name]), valuesOf(ours.end[name])
		compared := 0
		for series, want := range their {
			got, exists := our[series]
			if !exists && name == "kubernetes_feature_enabled" {
				continue // a feature that does not exist here
			}
			compared++
			switch {
			case !exists:
				t.Errorf("%s{%s} is missing", name, series)
			case rule == equal && got != want, rule == halved && got != want/2, rule == positive && (got <= 0 || want <= 0):
				t.Errorf("%s{%s} is %v, with kube-proxy %v; want it to be %s", name, series, got, want, rule)
			case rule == recent && !(during(got, ours.started) && during(want, theirs.started)):
				t.Errorf("%s{%s} is %v, with kube-proxy %v, which isn't since the start", name, series, got, want)
			}
		}
		if compared == 0 {
			t.Errorf("%s: kube-proxy has no series to compare with", name)
		}
	}
	for name := range theirs.end {
		if strings.HasPrefix(name, "kubeproxy_") && rules[name] == "" {
			t.Errorf("%s: nothing says how its values compare", name)
		}
	}
}

// during reports whether a Unix time is within a run that started at some time.
func during(seconds float64, started time.Time) bool {
	at := time.Unix(0, int64(seconds*1e9))
	return at.After(started) && at.Before(started.Add(time.Minute))
}

// valuesOf returns the values of a metric's series; for a histogram, the number of observations.
func valuesOf(f *dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		slices.Sort(labels)
		values[strings.Join(labels, ",")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return values
}

// compareNative checks that those of kube-proxy's histograms with native buckets have them here, with the same resolution.
func compareNative(t *testing.T, theirs, ours families) {
	compared := 0
	for name, their := range theirs {
		h := their.GetMetric()[0].GetHistogram()
		if h == nil || h.Schema == nil || !strings.HasPrefix(name, "kubeproxy_") {
			continue
		}
		compared++
		our := ours[name].GetMetric()[0].GetHistogram()
		if our == nil || our.Schema == nil || our.GetSchema() != h.GetSchema() {
			t.Errorf("%s has the native histogram %v, want schema %d", name, our, h.GetSchema())
		}
	}
	if compared < 4 {
		t.Errorf("kube-proxy has %d native histograms", compared)
	}
}

// mixin checks all series in the kubernetes-mixin's dashboard and alerts for kube-proxy. Those with a verb or code exist after
// the first such request.
func mixin(t *testing.T, theirs, ours families) {
	for _, series := range []struct{ name, label, value string }{
		{"kubeproxy_sync_proxy_rules_duration_seconds", "ip_family", "IPv4"}, {"kubeproxy_network_programming_duration_seconds", "ip_family", "IPv4"},
		{"rest_client_requests_total", "code", "200"}, {"rest_client_requests_total", "code", "201"},
		{"rest_client_request_duration_seconds", "verb", "GET"}, {"rest_client_request_duration_seconds", "verb", "POST"},
		{name: "process_resident_memory_bytes"}, {name: "process_cpu_seconds_total"}, {name: "go_goroutines"},
	} {
		for who, all := range map[string]families{"kube-proxy": theirs, "kube-nftproxy": ours} {
			found := false
			for labels, value := range valuesOf(all[series.name]) {
				found = found || value > 0 && (series.label == "" || slices.Contains(strings.Split(labels, ","), series.label+"="+series.value))
			}
			if !found {
				t.Errorf("%s has no series %s{%s=%q} above 0", who, series.name, series.label, series.value)
			}
		}
	}
	if ours["kubernetes_build_info"] != nil {
		t.Error("kubernetes_build_info is there: its version would be compared with the cluster's")
	}
}

// lint checks the whole page by Prometheus's rules. Its findings are in names from other projects.
func lint(t *testing.T, text []byte) {
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	must(t, err)
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") && !strings.HasPrefix(p.Metric, "rest_client_") &&
			p.Metric != "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// cardinality checks that no change of the cluster adds a proxy series.
func cardinality(t *testing.T, s scrapes) {
	count := func(all families) map[string]int {
		series := map[string]int{}
		for name, f := range all {
			if strings.HasPrefix(name, "kube") {
				series[name] = len(f.GetMetric())
			}
		}
		return series
	}
	lab.Same(t, count(s.first), count(s.end), "series by metric (-after the first sync +at the end)")
}
