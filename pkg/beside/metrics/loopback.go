package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// loopback are the metrics of node ports on loopback.
type loopback struct {
	listeners    *prometheus.GaugeVec
	notListening *prometheus.CounterVec
	connections  prometheus.Gauge
	failed       *prometheus.CounterVec
}

// register makes the metrics, and shows them only where node ports are served on loopback.
func (l *loopback) register(r registry, c Config) {
	if !c.Loopback {
		r.Registerer = prometheus.NewRegistry()
	}
	l.listeners = r.gauges("kubeproxy_nftables_localhost_nodeport_listeners",
		"Number of active localhost NodePort userspace proxy listeners.", "ip_family")
	l.notListening = r.counters("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Number of localhost NodePort userspace proxy listener creation failures.", "ip_family")
	l.connections = r.gauge("kubenftproxy_loopback_connections",
		"Open connections to node ports on loopback.")
	l.failed = r.counters("kubenftproxy_loopback_connections_failed_total",
		"Connections to node ports on loopback that the program has reset, by reason: "+
			"limit_of_namespace, the namespace of the Service has used its share of the file descriptors; "+
			"limit_of_node, the namespaces have used all file descriptors that they share; "+
			"endpoint, the endpoint did not accept the connection.", "reason")
	for _, f := range c.Families {
		l.listeners.WithLabelValues(f.String())
		l.notListening.WithLabelValues(f.String())
	}
	for _, reason := range []string{"limit_of_namespace", "limit_of_node", "endpoint"} {
		l.failed.WithLabelValues(reason)
	}
}

// LoopbackListeners sets the number of open listeners of a family on loopback.
func (m *Metrics) LoopbackListeners(f inet.Family, n int) {
	m.loopback.listeners.WithLabelValues(f.String()).Set(float64(n))
}

// LoopbackNotListening counts an attempt to listen on loopback that failed.
func (m *Metrics) LoopbackNotListening(f inet.Family) {
	m.loopback.notListening.WithLabelValues(f.String()).Inc()
}

// LoopbackConnections adds to the number of open connections to node ports on loopback.
func (m *Metrics) LoopbackConnections(more int) { m.loopback.connections.Add(float64(more)) }

// LoopbackFailed counts a connection to a node port on loopback that the program has reset.
func (m *Metrics) LoopbackFailed(reason string) { m.loopback.failed.WithLabelValues(reason).Inc() }

// refused reads the kernel's counters at each scrape.
type refused struct {
	desc     *prometheus.Desc
	families []inet.Family
	read     func(inet.Family) (map[inet.Protocol]uint64, error)
}

// RegisterLoopback registers the number of packets that the kernel has refused at node ports on loopback, which read
// returns. Without families there is no such metric. It panics if it is registered already.
func RegisterLoopback(
	reg prometheus.Registerer, families []inet.Family, read func(inet.Family) (map[inet.Protocol]uint64, error),
) {
	if len(families) > 0 {
		reg.MustRegister(&refused{prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
			"Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected.",
			[]string{"ip_family", "protocol"}, nil), families, read})
	}
}

// Describe implements prometheus.Collector.
func (r *refused) Describe(to chan<- *prometheus.Desc) { to <- r.desc }

// Collect implements prometheus.Collector. A family whose counters cannot be read has no samples.
func (r *refused) Collect(to chan<- prometheus.Metric) {
	for _, f := range r.families {
		counts, err := r.read(f)
		if err != nil {
			continue
		}
		for protocol, n := range counts {
			to <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(n), f.String(),
				strings.ToUpper(protocol.String()))
		}
	}
}
