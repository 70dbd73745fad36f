package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Terminations counts terminated TCP connections. It implements conntrack.Metrics.
type Terminations struct {
	deleted *prometheus.CounterVec
	passes  *Metrics
}

// NewTerminations registers the metric of terminated connections. Searches count as other searches of m.
func NewTerminations(r prometheus.Registerer, m *Metrics) *Terminations {
	return terminations(r, m, "kubenftproxy_terminated_connections_total", "TCP connections to endpoints that left the "+
		"EndpointSlices, terminated because of --terminate-connections or the annotation.")
}

// NewSpreads does the same for connections that were terminated to spread them over more endpoints.
func NewSpreads(r prometheus.Registerer, m *Metrics) *Terminations {
	return terminations(r, m, "kubenftproxy_spread_connections_total", "TCP connections terminated after a Service got "+
		"more endpoints, because of the annotation kube-nftproxy.io/spread-connections.")
}

func terminations(r prometheus.Registerer, m *Metrics, name, help string) *Terminations {
	return &Terminations{passes: m, deleted: registry{Registerer: r}.counters(name, help, m.family)}
}

// FlowsDeleted records one search.
func (t *Terminations) FlowsDeleted(f inet.Family, _ time.Duration, deleted int) {
	t.deleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// FlowsSearched records the end of a search.
func (t *Terminations) FlowsSearched(f inet.Family, err error) { t.passes.FlowsSearched(f, err) }
