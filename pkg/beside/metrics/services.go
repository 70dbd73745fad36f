package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// ServiceCounts returns the kernel's counts of connections to Services.
type ServiceCounts interface {
	// Await updates the counts, within patience.
	Await(patience time.Duration) error
	Total() counters.Counts
	Ports() []counters.Port
	Zones() []counters.Zone
	Endpoints(wanted func(types.NamespacedName) bool) []counters.Endpoint
}

// MostEndpointSeries is the largest number of series of single endpoints.
const MostEndpointSeries = 1000

// Series selects the series of the counts.
type Series struct {
	// Ports is the number of service ports with separate series. Their Services also have series for zones.
	Ports int
	// Endpoints are the Services, as NAMESPACE/NAME, whose endpoints have series, within MostEndpointSeries. Earlier Services take precedence.
	Endpoints []string
	// LeftOut, if not nil, is called once for each of these Services that is left out, with the number of its series.
	LeftOut func(service string, series int)
}

// patience is the longest time that a scrape waits for the kernel's counters. If it is too short, the next scrape has them.
const patience = time.Second

// services collects the counts of connections to Services.
//
// There may be more Services than a Prometheus server should store, so only the busiest have series. The choice depends on the
// counts since the start. A shown series is only replaced by one with twice its count: so series rarely change, and each only
// grows while its Service exists. The rest is the total less the sum.
type services struct {
	source ServiceCounts
	Series

	connections, refused, service, serviceRefused, zone, endpoint, leftOut *prometheus.Desc
	readings                                                               *prometheus.CounterVec

	mu    sync.Mutex
	ports shown
	// reported are the Services that LeftOut has received.
	reported map[string]bool
}

// RegisterServices registers the counts of connections to Services. It panics if they are registered already.
func RegisterServices(reg prometheus.Registerer, source ServiceCounts, series Series) {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kubenftproxy_"+name, help, labels, nil)
	}
	s := &services{
		source: source, Series: series, reported: map[string]bool{},
		connections: describe("connections_total", "New connections to Services through this node that were forwarded to an endpoint. All metrics of connections need --count-connections."),
		refused: describe("refused_total", "New connections to Services through this node that were refused or dropped, by reason: "+
			reasons()+". Each retry of a client counts.", "reason"),
		service: describe("service_connections_total", "New connections forwarded for one service port. Only the busiest service ports have series.",
			"namespace", "service", "port"),
		serviceRefused: describe("service_refused_total", "New connections refused or dropped for one service port, by reason. Only the busiest service ports have series. "+
			"A connection to an unused port counts for the Service, with an empty port.", "namespace", "service", "port", "reason"),
		zone: describe("service_zone_connections_total", "New connections forwarded for one Service, by the zone of the endpoint in its EndpointSlice; unknown if that has none, "+
			"other for all zones of a Service above 16. Needs --count-connections=endpoints. Only the Services of the busiest service ports have series.", "namespace", "service", "zone"),
		endpoint: describe("endpoint_connections_total", "New connections forwarded to one endpoint of a service port, with its zone and node. "+
			"Only Services in --metrics-endpoints have series, up to 1,000 in total.", "namespace", "service", "port", "endpoint", "zone", "node"),
		leftOut: describe("endpoint_series_left_out", "Services in --metrics-endpoints whose endpoints have no series, because the series would exceed 1,000 in total."),
		readings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubenftproxy_connection_readings_total",
			Help: "Readings of the kernel's connection counters for a scrape, by result: done or failed. After a failed reading, " +
				"the metrics have the previous values.",
		}, []string{"result"}),
		ports: shown{},
	}
	for _, result := range []string{resultDone, resultFailed} {
		s.readings.WithLabelValues(result)
	}
	reg.MustRegister(s)
}

// reasons lists the values of the label reason, with their meanings.
func reasons() string {
	var list []string
	for _, row := range outcome.Rows {
		if row.Label != "" {
			list = append(list, strings.TrimSuffix(row.Label+", "+row.Help, ", "))
		}
	}
	return strings.Join(list, "; ")
}

// Describe implements [prometheus.Collector].
func (s *services) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.connections, s.refused, s.service, s.serviceRefused, s.zone, s.endpoint, s.leftOut} {
		to <- d
	}
	s.readings.Describe(to)
}

// Collect implements [prometheus.Collector].
func (s *services) Collect(to chan<- prometheus.Metric) {
	result := resultDone
	if s.source.Await(patience) != nil {
		result = resultFailed
	}
	s.readings.WithLabelValues(result).Inc()
	s.readings.Collect(to)
	send := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	total := s.source.Total()
	send(s.connections, total[outcome.Forwarded])
	for code, row := range outcome.Rows {
		if row.Label != "" {
			send(s.refused, total[code], row.Label)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := map[types.NamespacedName]bool{}
	for _, p := range s.ports.choose(s.source.Ports(), s.Ports) {
		busy[types.NamespacedName{Namespace: p.Namespace, Name: p.Service}] = true
		if n := p.Counts[outcome.Forwarded]; p.Port != "" || n > 0 {
			send(s.service, n, p.Namespace, p.Service, p.Port)
		}
		for code, row := range outcome.Rows {
			if n := p.Counts[code]; row.Label != "" && n > 0 {
				send(s.serviceRefused, n, p.Namespace, p.Service, p.Port, row.Label)
			}
		}
	}
	for _, z := range s.source.Zones() {
		if busy[types.NamespacedName{Namespace: z.Namespace, Name: z.Service}] {
			send(s.zone, z.Connections, z.Namespace, z.Service, z.Zone)
		}
	}
	if len(s.Endpoints) == 0 {
		return
	}
	list, leftOut := s.endpoints()
	for _, e := range list {
		send(s.endpoint, e.Connections, e.Namespace, e.Service, e.Port, e.To.String(), e.Zone, e.Node)
	}
	to <- prometheus.MustNewConstMetric(s.leftOut, prometheus.GaugeValue, float64(leftOut))
}

// endpoints returns the endpoints of the selected Services, and the number of Services that are left out.
func (s *services) endpoints() (list []counters.Endpoint, leftOut int) {
	found := map[string][]counters.Endpoint{}
	for _, e := range s.source.Endpoints(func(n types.NamespacedName) bool { return slices.Contains(s.Endpoints, n.String()) }) {
		name := e.Namespace + "/" + e.Service
		found[name] = append(found[name], e)
	}
	for _, name := range s.Endpoints {
		more := found[name]
		delete(found, name) // the list may have a name twice
		if len(list)+len(more) <= MostEndpointSeries {
			list = append(list, more...)
			continue
		}
		if leftOut++; !s.reported[name] && s.LeftOut != nil {
			s.LeftOut(name, len(more))
		}
		s.reported[name] = true
	}
	return list, leftOut
}

// series are the labels of a service port.
type series [3]string

// shown are the service ports with series at the last scrape.
type shown map[series]struct{}

// choose returns the busiest service ports, at most most, and records them as shown.
func (s shown) choose(list []counters.Port, most int) []counters.Port {
	if len(list) > most {
		slices.SortFunc(list, func(a, b counters.Port) int {
			x, y := portSeries(&a), portSeries(&b)
			return cmp.Or(cmp.Compare(s.weight(y, portSum(&b)), s.weight(x, portSum(&a))), slices.Compare(x[:], y[:]))
		})
		list = list[:most]
	}
	clear(s)
	for i := range list {
		s[portSeries(&list[i])] = struct{}{}
	}
	return list
}

// weight doubles the count of a shown service port.
func (s shown) weight(name series, n uint64) uint64 {
	if _, ok := s[name]; ok {
		return 2 * n
	}
	return n
}

func portSeries(p *counters.Port) series { return series{p.Namespace, p.Service, p.Port} }

func portSum(p *counters.Port) (sum uint64) {
	for _, n := range p.Counts {
		sum += n
	}
	return sum
}
