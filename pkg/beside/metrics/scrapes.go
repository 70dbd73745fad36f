package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// collected are metrics that are read at each scrape. It implements [prometheus.Collector].
type collected struct {
	descs []*prometheus.Desc
	read  func(send)
}

// send sends the value of a series.
type send func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string)

// Describe implements [prometheus.Collector].
func (c collected) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collected) Collect(to chan<- prometheus.Metric) {
	c.read(func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	})
}

// desc describes a metric that is read at each scrape, and adds it to the list.
func (c *collected) desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	c.descs = append(c.descs, d)
	return d
}

// RegisterClients registers the metrics of remembered clients. It panics if they are registered already.
func RegisterClients(reg prometheus.Registerer, states func() []affinity.State) {
	var c collected
	present := c.desc("kubenftproxy_affinity_clients",
		"Remembered clients of Services with session affinity, at the last count: up to a second ago, and before "+
			"kernel 6.16 at the last reading of all clients. No series before the first count: without Services "+
			"with session affinity, the program does not count.", "ip_family")
	most := c.desc("kubenftproxy_affinity_clients_limit",
		"Limit of the remembered clients of Services with session affinity.", "ip_family")
	lost := c.desc("kubenftproxy_affinity_clients_forgotten_total",
		"Clients of Services with session affinity that the program has forgotten before their timeout, because "+
			"more than half of the limit was in use, and their namespace had more than its part and its share, or "+
			"their Service was deleted.", "ip_family")
	c.read = func(to send) {
		for _, s := range states() {
			if s.Clients >= 0 {
				to(present, prometheus.GaugeValue, float64(s.Clients), s.Family.String())
			}
			to(most, prometheus.GaugeValue, float64(s.Limit), s.Family.String())
			to(lost, prometheus.CounterValue, float64(s.Forgotten), s.Family.String())
		}
	}
	reg.MustRegister(c)
}

// RegisterDemand registers the demand for Services that scale to zero, which each yields. It panics if it is
// registered already.
func RegisterDemand(reg prometheus.Registerer, each func(func(service types.NamespacedName, wanted bool))) {
	var c collected
	demand := c.desc("kubenftproxy_service_demand",
		"1 if this node has held a packet to the Service within 90 seconds because the Service has no endpoint, else "+
			"0. Only Services with the annotation kube-nftproxy.io/scale-to-zero have series, while they have no "+
			"endpoint or their value is 1.", "namespace", "service")
	c.read = func(to send) {
		each(func(service types.NamespacedName, wanted bool) {
			to(demand, prometheus.GaugeValue, number(wanted), service.Namespace, service.Name)
		})
	}
	reg.MustRegister(c)
}

// RegisterLoopback registers the number of packets that the kernel has refused at node ports on loopback, which read
// returns. A family whose counters cannot be read has no samples. Without families there is no such metric. It panics
// if it is registered already.
func RegisterLoopback(
	reg prometheus.Registerer, families []inet.Family, read func(inet.Family) (map[inet.Protocol]uint64, error),
) {
	if len(families) == 0 {
		return
	}
	var c collected
	refused := c.desc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected.", "ip_family", "protocol")
	c.read = func(to send) {
		for _, f := range families {
			counts, err := read(f)
			if err != nil {
				continue
			}
			for protocol, n := range counts {
				to(refused, prometheus.CounterValue, float64(n), f.String(), strings.ToUpper(protocol.String()))
			}
		}
	}
	reg.MustRegister(c)
}
