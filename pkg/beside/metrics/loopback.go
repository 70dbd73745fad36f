package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// registerLoopback makes the metrics of node ports on loopback, and shows them only if shown is true.
func (m *Metrics) registerLoopback(r registry, shown bool) {
	if !shown {
		r.Registerer = prometheus.NewRegistry()
	}
	m.loopbackListeners = r.gauges("kubeproxy_nftables_localhost_nodeport_listeners",
		"Number of active localhost NodePort userspace proxy listeners.", m.family)
	m.loopbackNotListening = r.counters("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Number of localhost NodePort userspace proxy listener creation failures.", m.family)
	m.loopbackConnections = r.gauge("kubenftproxy_loopback_connections",
		"Open connections to node ports on loopback.")
	m.loopbackFailures = r.counters("kubenftproxy_loopback_connections_failed_total",
		"Connections to node ports on loopback that the program has reset, by reason: "+
			"limit_of_namespace, the namespace of the Service has used its share of the file descriptors; "+
			"limit_of_node, the namespaces have used all file descriptors that they share; "+
			"endpoint, the endpoint did not accept the connection.",
		by("reason", "limit_of_namespace", "limit_of_node", "endpoint"))
}

// LoopbackListeners sets the number of open listeners of a family on loopback.
func (m *Metrics) LoopbackListeners(f inet.Family, n int) {
	m.loopbackListeners.WithLabelValues(f.String()).Set(float64(n))
}

// LoopbackNotListening counts an attempt to listen on loopback that failed.
func (m *Metrics) LoopbackNotListening(f inet.Family) {
	m.loopbackNotListening.WithLabelValues(f.String()).Inc()
}

// LoopbackConnections adds to the number of open connections to node ports on loopback.
func (m *Metrics) LoopbackConnections(more int) { m.loopbackConnections.Add(float64(more)) }

// LoopbackFailed counts a connection to a node port on loopback that the program has reset.
func (m *Metrics) LoopbackFailed(reason string) { m.loopbackFailures.WithLabelValues(reason).Inc() }
