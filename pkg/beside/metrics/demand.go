package metrics

import "github.com/prometheus/client_golang/prometheus"

// demand reads the demand for Services without endpoints at each scrape.
type demand struct {
	desc *prometheus.Desc
	each func(func(namespace, service string, wanted bool))
}

// RegisterDemand registers the demand for Services that scale to zero, which each yields. It panics if it is
// registered already.
func RegisterDemand(reg prometheus.Registerer, each func(func(namespace, service string, wanted bool))) {
	reg.MustRegister(&demand{prometheus.NewDesc("kubenftproxy_service_demand",
		"1 if this node has held a packet to the Service within 90 seconds because the Service has no endpoint, else "+
			"0. Only Services with the annotation kube-nftproxy.io/scale-to-zero have series, while they have no "+
			"endpoint or their value is 1.",
		[]string{"namespace", "service"}, nil), each})
}

// Describe implements [prometheus.Collector].
func (d *demand) Describe(to chan<- *prometheus.Desc) { to <- d.desc }

// Collect implements [prometheus.Collector].
func (d *demand) Collect(to chan<- prometheus.Metric) {
	d.each(func(namespace, service string, wanted bool) {
		value := 0.0
		if wanted {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, value, namespace, service)
	})
}
