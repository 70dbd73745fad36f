package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/prometheus/slis"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/zpages"
)

// metricsPort handles all paths of the metrics port: kube-proxy's, and the status page.
func (d *daemon) metricsPort() http.Handler {
	mux := health.MetricsHandler(prometheus.Gatherers{d.registry, metrics.RestClient()}, d.started)
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.Handle("/configz", zpages.Configz(map[string]any{kubeproxy.GroupName: config.Effective(d.Config)}))
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode", statuspage.Path}
	if d.Gates.Enabled(config.ComponentFlagz) {
		mux.Handle("/flagz", zpages.Flagz(d.flags, config.FlagValue))
		paths = []string{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", statuspage.Path}
	}
	if d.Gates.Enabled(config.ComponentStatusz) {
		mux.Handle("/statusz", zpages.Statusz(version, config.Kubernetes, d.started, paths))
	}
	d.console.install(mux)
	if d.Config.EnableProfiling {
		zpages.Debug(mux, func(value string) error {
			_, err := logs.GlogSetter(value)
			return err
		})
	}
	return mux
}

// registerMetrics makes all metrics but those of the API server's client.
func (s *settings) registerMetrics(registry *prometheus.Registry, families []model.Family) *metrics.Metrics {
	metrics.RegisterProcess(registry)
	var features []metrics.Feature
	for _, g := range s.ActingGates() {
		features = append(features, metrics.Feature(g))
	}
	metrics.RegisterFeatures(registry, features)
	return metrics.New(registry, metrics.Config{
		Families: families, Version: version, NativeHistograms: s.Gates.Enabled(config.NativeHistograms),
	})
}
