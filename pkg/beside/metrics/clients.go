package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// clients reads the numbers of remembered clients at each scrape.
type clients struct {
	number, limit, forgotten *prometheus.Desc
	each                     func(func(f inet.Family, number, limit int, forgotten uint64))
}

// RegisterClients registers the metrics of remembered clients, which each yields: their number (-1 if it is not known
// yet), their limit, and the number of forgotten clients. It panics if they are registered already.
func RegisterClients(reg prometheus.Registerer, each func(func(f inet.Family, number, limit int, forgotten uint64))) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"ip_family"}, nil)
	}
	reg.MustRegister(&clients{
		desc("kubenftproxy_affinity_clients",
			"Remembered clients of Services with session affinity, at the last count: up to a second ago, and before "+
				"kernel 6.16 at the last reading of all clients. No series before the first count: without Services "+
				"with session affinity, the program does not count."),
		desc("kubenftproxy_affinity_clients_limit",
			"Limit of the remembered clients of Services with session affinity."),
		desc("kubenftproxy_affinity_clients_forgotten_total",
			"Clients of Services with session affinity that the program has forgotten before their timeout, because "+
				"more than half of the limit was in use, and their namespace had more than its part and its share, or "+
				"their Service was deleted."),
		each,
	})
}

// Describe implements [prometheus.Collector].
func (c *clients) Describe(to chan<- *prometheus.Desc) {
	to <- c.number
	to <- c.limit
	to <- c.forgotten
}

// Collect implements [prometheus.Collector].
func (c *clients) Collect(to chan<- prometheus.Metric) {
	c.each(func(f inet.Family, number, limit int, forgotten uint64) {
		ip := f.String()
		if number >= 0 {
			to <- prometheus.MustNewConstMetric(c.number, prometheus.GaugeValue, float64(number), ip)
		}
		to <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(limit), ip)
		to <- prometheus.MustNewConstMetric(c.forgotten, prometheus.CounterValue, float64(forgotten), ip)
	})
}
