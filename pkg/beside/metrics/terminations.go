package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Terminations counts terminated TCP connections. It implements conntrack.Metrics.
type Terminations struct {
	deleted, challenged *prometheus.CounterVec
	passes              *Metrics
}

// NewTerminations registers the metric of terminated connections. Searches count as other searches of m.
func NewTerminations(r prometheus.Registerer, m *Metrics) *Terminations {
	t := &Terminations{passes: m, deleted: registry{Registerer: r}.counters("kubenftproxy_terminated_connections_total",
		"TCP connections to endpoints that left the EndpointSlices, terminated because of --terminate-connections or the annotation.", "ip_family"),
		challenged: registry{Registerer: r}.counters("kubenftproxy_challenged_clients_total",
			"Clients of terminated connections to which the program has sent a segment, so that they get their reset at once.", "ip_family")}
	for _, f := range m.families {
		t.deleted.WithLabelValues(f.String())
		t.challenged.WithLabelValues(f.String())
	}
	return t
}

// FlowsDeleted records one search.
func (t *Terminations) FlowsDeleted(f inet.Family, _ time.Duration, deleted int) {
	t.deleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// Challenged counts clients of terminated connections that were made to answer.
func (t *Terminations) Challenged(f inet.Family, n int) {
	t.challenged.WithLabelValues(f.String()).Add(float64(n))
}

// FlowsSearched records the end of a search.
func (t *Terminations) FlowsSearched(f inet.Family, err error) { t.passes.FlowsSearched(f, err) }
