package health

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestMetricsHandlerTexts(t *testing.T) {
	type reply struct {
		code                 int
		contentType, nosniff string
		body                 string
	}
	plain := func(body string) reply { return reply{200, "text/plain; charset=utf-8", "nosniff", body} }
	missing := reply{404, "text/plain; charset=utf-8", "nosniff", "404 page not found\n"}
	tests := map[string]reply{
		"/proxyMode":            plain("nftables"),
		"/healthz":              plain("ok"),
		"/healthz?verbose":      plain("[+]ping ok\nhealthz check passed\n"),
		"/healthz?verbose=true": plain("[+]ping ok\nhealthz check passed\n"),
		"/healthz/ping":         {200, "text/plain; charset=utf-8", "", "ok"},
		"/livez":                missing,
		"/":                     missing,
	}
	h := MetricsHandler(prometheus.NewRegistry(), start)
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			w := ask(h, http.MethodGet, path)
			got := reply{w.Code, w.Header().Get("Content-Type"), w.Header().Get("X-Content-Type-Options"), w.Body.String()}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(reply{})); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// broken is a collector that always fails.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}
func (broken) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(errors.New("no")), errors.New("no"))
}

func TestMetricsHandlerGathers(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, metrics.Config{})
	m.HealthAnswered("/healthz", http.StatusOK)
	reg.MustRegister(broken{})
	w := ask(MetricsHandler(reg, start), http.MethodGet, "/metrics")
	for _, want := range []string{
		"kubeproxy_proxy_healthz_total{code=\"200\"} 1\n",
		"kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.001\"} 0\n",
		"kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"16.384\"} 0\n",
	} {
		lab.Contains(t, w.Body.String(), "/metrics", want)
	}
	lab.Same(t, "1767323045", w.Header().Get("Process-Start-Time-Unix"), "Process-Start-Time-Unix")
}
