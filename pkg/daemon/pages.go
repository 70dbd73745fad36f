package daemon

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/prometheus/slis"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/zpages"
)

// metricsPort returns the handler of the metrics port: kube-proxy's paths, and the status page.
func (d *daemon) metricsPort() http.Handler {
	mux := health.MetricsHandler(d.gatherer(), d.started)
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.Handle("/configz", zpages.Configz(map[string]any{kubeproxy.GroupName: config.Effective(d.Config)}))
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode", statuspage.Path}
	if d.Gates.Enabled(config.ComponentFlagz) {
		mux.Handle("/flagz", zpages.Flagz(d.Flags, config.FlagValue))
		paths = slices.Insert(paths, 1, "/flagz")
	}
	if d.Gates.Enabled(config.ComponentStatusz) {
		mux.Handle("/statusz", zpages.Statusz(d.version, config.Kubernetes, d.started, paths))
	}
	d.console.Install(mux)
	if d.Config.EnableProfiling {
		zpages.Debug(mux, func(value string) error {
			_, err := logs.GlogSetter(value)
			return err
		})
	}
	return mux
}

// gatherer returns all metrics.
func (d *daemon) gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{d.registry, metrics.RestClient()}
}

// registerMetrics registers all metrics except those of the API server's client.
func (d *daemon) registerMetrics() *metrics.Metrics {
	metrics.RegisterProcess(d.registry)
	var features []metrics.Feature
	for _, g := range d.ActingGates() {
		features = append(features, metrics.Feature(g))
	}
	metrics.RegisterFeatures(d.registry, features)
	return metrics.New(d.registry, metrics.Config{
		Families: d.families, Version: d.version, NativeHistograms: d.Gates.Enabled(config.NativeHistograms),
		Loopback: len(d.LoopbackFamilies(d.families)) > 0,
	})
}
