package metrics

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeCounts are given counts.
type fakeCounts struct {
	ports []counters.Port
	zones []counters.Zone
	err   error
}

// busy returns the counts of a number of Services: svc-0 has 1 connection, svc-1 has 2, and so on.
func busy(services int) *fakeCounts {
	f := &fakeCounts{}
	for i := range services {
		p := counters.Port{Namespace: "shop", Service: fmt.Sprintf("svc-%d", i), Port: "http"}
		p.Counts[outcome.Forwarded], p.Counts[outcome.NoEndpoints] = uint64(i+1), 1
		f.ports = append(f.ports, p)
	}
	return f
}

func (f *fakeCounts) Await(time.Duration) error { return f.err }

func (f *fakeCounts) Total() (c counters.Counts) {
	for _, p := range f.ports {
		for code, n := range p.Counts {
			c[code] += n
		}
	}
	return c
}

func (f *fakeCounts) Ports() []counters.Port { return append([]counters.Port{}, f.ports...) }

func (f *fakeCounts) Zones() []counters.Zone { return f.zones }

// placed returns the counts of busy(2), with a zone.
func placed() *fakeCounts {
	f := busy(2)
	f.zones = []counters.Zone{{Namespace: "shop", Service: "svc-0", Zone: "a", Connections: 1}}
	return f
}

// Only the Services of shown service ports have series for zones.
func TestSeriesOfZones(t *testing.T) {
	f := busy(3)
	for i := range 3 {
		f.zones = append(f.zones, counters.Zone{
			Namespace: "shop", Service: fmt.Sprint("svc-", i), Zone: "a", Connections: uint64(i + 1),
		})
	}
	reg := prometheus.NewPedanticRegistry()
	RegisterServices(reg, f, 2)
	want := map[string]float64{"shop,svc-1,a": 2, "shop,svc-2,a": 3}
	lab.Same(t, want, values(t, reg, "kubenftproxy_service_zone_connections_total"), "zones")
}

const perService = "kubenftproxy_service_connections_total"

func TestOnlyTheBusiestServicesHaveSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := busy(1000)
	RegisterServices(reg, f, 3)
	want := map[string]float64{"shop,http,svc-999": 1000, "shop,http,svc-998": 999, "shop,http,svc-997": 998}
	lab.Same(t, want, values(t, reg, perService), "the busiest")
	lab.Same(t, 500500, values(t, reg, "kubenftproxy_connections_total")[""], "connections in all")
	// A shown series stays, unless another one has twice its count.
	f.ports[0].Counts[outcome.Forwarded] = 1990
	lab.Same(t, want, values(t, reg, perService), "after a Service has become busier")
	f.ports[0].Counts[outcome.Forwarded] = 5000
	delete(want, "shop,http,svc-997")
	want["shop,http,svc-0"] = 5000
	lab.Same(t, want, values(t, reg, perService), "after a Service has become much busier")
}

func TestNoServiceHasSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	RegisterServices(reg, busy(5), 0)
	for _, name := range []string{perService, "kubenftproxy_service_refused_total"} {
		if got := values(t, reg, name); len(got) > 0 {
			t.Errorf("%s has series: %v", name, got)
		}
	}
	want := map[string]float64{}
	for _, row := range outcome.Rows {
		if row.Label != "" {
			want[row.Label] = 0
		}
	}
	want["no_endpoints"] = 5
	lab.Same(t, want, values(t, reg, "kubenftproxy_refused_total"), "totals")
}

func TestAReadingThatFailsShows(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := busy(1)
	RegisterServices(reg, f, 1)
	f.err = errors.New("no")
	if got := values(t, reg, perService); got["shop,http,svc-0"] != 1 {
		t.Errorf("got %v, want what was known before", got)
	}
	f.err = nil
	lab.Same(t, map[string]float64{"done": 1, "failed": 1}, values(t, reg, "kubenftproxy_connection_readings_total"), "readings")
}
