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
}

// patience is the longest time that a scrape waits for the kernel's counters. If it is too short, the next scrape has
// them.
const patience = time.Second

// services collects the counts of connections to Services.
//
// There may be more Services than a Prometheus server should store, so only the busiest have series. The choice
// depends on the counts since the start. A shown series is only replaced by one with twice its count: so series
// rarely change, and each only grows while its Service exists. The rest is the total less the sum.
type services struct {
	source ServiceCounts
	most   int

	connections, refused, service, serviceRefused, zone, reading *prometheus.Desc

	mu    sync.Mutex
	ports shown
	// readings has the number of readings by result.
	readings map[string]uint64
}

// RegisterServices registers the counts of connections to Services. most is the number of service ports with separate
// series. Their Services also have series for zones. It panics if the counts are registered already.
func RegisterServices(reg prometheus.Registerer, source ServiceCounts, most int) {
	var c collected
	s := &services{
		source: source, most: most, ports: shown{}, readings: map[string]uint64{},
		connections: c.desc("kubenftproxy_connections_total",
			"New connections to Services through this node that were forwarded to an endpoint. All metrics of "+
				"connections need --count-connections."),
		refused: c.desc("kubenftproxy_refused_total",
			"New connections to Services through this node that were refused or dropped, by reason: "+
				reasons()+". Each retry of a client counts.", "reason"),
		service: c.desc("kubenftproxy_service_connections_total",
			"New connections forwarded for one service port. Only the busiest service ports have series.",
			"namespace", "service", "port"),
		serviceRefused: c.desc("kubenftproxy_service_refused_total",
			"New connections refused or dropped for one service port, by reason. Only the busiest service ports have "+
				"series. A connection to an unused port counts for the Service, with an empty port.",
			"namespace", "service", "port", "reason"),
		zone: c.desc("kubenftproxy_service_zone_connections_total",
			"New connections forwarded for one Service, by the zone of the endpoint in its EndpointSlice; unknown if "+
				"that has none, other for all zones of a Service above 16. Needs --count-connections=zones. Only the "+
				"Services of the busiest service ports have series.", "namespace", "service", "zone"),
		reading: c.desc("kubenftproxy_connection_readings_total",
			"Readings of the kernel's connection counters for a scrape, by result: done or failed. After a failed "+
				"reading, the metrics have the previous values.", "result"),
	}
	c.read = s.read
	reg.MustRegister(c)
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

// read reads the counts, and sends those of the busiest service ports.
func (s *services) read(to send) {
	result := resultOf(s.source.Await(patience))
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		to(d, prometheus.CounterValue, float64(n), labels...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings[result]++
	for _, result := range results().known {
		count(s.reading, s.readings[result], result)
	}
	total := s.source.Total()
	count(s.connections, total[outcome.Forwarded])
	for code, row := range outcome.Rows {
		if row.Label != "" {
			count(s.refused, total[code], row.Label)
		}
	}
	busy := map[types.NamespacedName]bool{}
	for _, p := range s.ports.choose(s.source.Ports(), s.most) {
		busy[types.NamespacedName{Namespace: p.Namespace, Name: p.Service}] = true
		if n := p.Counts[outcome.Forwarded]; p.Port != "" || n > 0 {
			count(s.service, n, p.Namespace, p.Service, p.Port)
		}
		for code, row := range outcome.Rows {
			if n := p.Counts[code]; row.Label != "" && n > 0 {
				count(s.serviceRefused, n, p.Namespace, p.Service, p.Port, row.Label)
			}
		}
	}
	for _, z := range s.source.Zones() {
		if busy[types.NamespacedName{Namespace: z.Namespace, Name: z.Service}] {
			count(s.zone, z.Connections, z.Namespace, z.Service, z.Zone)
		}
	}
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
