package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// durationBuckets returns kube-proxy's bounds, 0.001·2^n for n = 0 to 14, extended to n = -7 and n = 20. Doubling and
// halving are exact, so the bounds in the middle have the same values and the same text in the label le.
func durationBuckets() []float64 {
	const shortest = 0.001 / 128
	return prometheus.ExponentialBuckets(shortest, 2, 28)
}

// programmingBuckets returns kube-proxy's 81 bounds for the network programming latency, in seconds: fine up to one
// minute, near the service level objective, and coarse up to five. The first one, 0, is a mistake in kube-proxy
// (MergeBuckets of k8s.io/component-base) that is part of its metric.
func programmingBuckets() []float64 {
	b := []float64{0, 0.25, 0.5}
	b = append(b, prometheus.LinearBuckets(1, 1, 59)...)
	b = append(b, prometheus.LinearBuckets(60, 5, 12)...)
	return append(b, prometheus.LinearBuckets(120, 30, 7)...)
}

// registry creates and registers collectors.
type registry struct {
	prometheus.Registerer
	native bool
}

// options returns the options of a histogram. Native buckets have the resolution of other Kubernetes components.
func (r registry) options(name, help string, buckets []float64) prometheus.HistogramOpts {
	o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	if r.native {
		o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber = 1.1, 160
	}
	return o
}

func (r registry) histograms(name, help string, buckets []float64, labels ...label) *prometheus.HistogramVec {
	c := prometheus.NewHistogramVec(r.options(name, help, buckets), names(labels))
	r.MustRegister(c)
	each(labels, func(values []string) { c.WithLabelValues(values...) })
	return c
}

func (r registry) gauges(name, help string, labels ...label) *prometheus.GaugeVec {
	c := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, names(labels))
	r.MustRegister(c)
	each(labels, func(values []string) { c.WithLabelValues(values...) })
	return c
}

func (r registry) counters(name, help string, labels ...label) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, names(labels))
	r.MustRegister(c)
	each(labels, func(values []string) { c.WithLabelValues(values...) })
	return c
}

// The forms for a metric without labels.

func (r registry) histogram(name, help string, buckets []float64) prometheus.Observer {
	return r.histograms(name, help, buckets).WithLabelValues()
}
func (r registry) gauge(name, help string) prometheus.Gauge {
	return r.gauges(name, help).WithLabelValues()
}
func (r registry) counter(name, help string) prometheus.Counter {
	return r.counters(name, help).WithLabelValues()
}

// label is a label of a metric, with the values that are known in advance. A metric has a series for each combination
// of known values from the start. So it has none if a label has no known values. This applies to times, because a time
// of 0 would appear as an age of decades, and to elements, because the plan determines the sets.
type label struct {
	name  string
	known []string
}

func by(name string, known ...string) label { return label{name, known} }

func names(labels []label) (list []string) {
	for _, l := range labels {
		list = append(list, l.name)
	}
	return list
}

// each calls a function with each combination of known values, behind the given ones.
func each(labels []label, f func(values []string), values ...string) {
	if len(labels) == 0 {
		f(values)
		return
	}
	for _, v := range labels[0].known {
		each(labels[1:], f, append(values, v)...)
	}
}

// resultOf returns the value of the label of [results].
func resultOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "done"
}

func results() label { return by("result", "done", "failed") }

// number returns the value of a gauge that is 1 or 0.
func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// RegisterProcess registers process_* and all go_* metrics, as every Kubernetes component does. It panics if they are
// registered already.
//
// It does not register kubernetes_build_info: the alert KubeVersionMismatch of the kubernetes-mixin counts its
// distinct versions, and this program's version differs from the cluster's.
func RegisterProcess(reg prometheus.Registerer) {
	reg.MustRegister(process()...)
}

func process() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)),
	}
}

// Feature is a feature gate of kube-proxy.
type Feature struct {
	// Stage is ALPHA, BETA, DEPRECATED, or empty for general availability.
	Name, Stage string
	Enabled     bool
}

// RegisterFeatures registers kubernetes_feature_enabled, as every Kubernetes component does, for the given gates. It
// panics if it is registered already.
func RegisterFeatures(reg prometheus.Registerer, features []Feature) {
	enabled := registry{Registerer: reg}.gauges("kubernetes_feature_enabled",
		"1 for a feature gate that is enabled; only those whose setting acts here.", by("name"), by("stage"))
	for _, f := range features {
		enabled.WithLabelValues(f.Name, f.Stage).Set(number(f.Enabled))
	}
}
