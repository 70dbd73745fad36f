package metrics

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeCounts are given counts.
type fakeCounts struct {
	ports     []counters.Port
	zones     []counters.Zone
	endpoints []counters.Endpoint
	err       error
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

func (f *fakeCounts) Endpoints(wanted func(types.NamespacedName) bool) (list []counters.Endpoint) {
	for _, e := range f.endpoints {
		if wanted(types.NamespacedName{Namespace: e.Namespace, Name: e.Service}) {
			list = append(list, e)
		}
	}
	return list
}

// placed returns the counts of busy(2), with a zone and an endpoint, and the series for them.
func placed() (*fakeCounts, Series) {
	f := busy(2)
	f.zones = []counters.Zone{{Namespace: "shop", Service: "svc-0", Zone: "a", Connections: 1}}
	f.endpoints = []counters.Endpoint{{Namespace: "shop", Service: "svc-0", Port: "http", To: netip.MustParseAddrPort("10.0.0.1:80"), Connections: 1}}
	return f, Series{Ports: 100, Endpoints: []string{"shop/svc-0"}}
}

// Only the Services of shown service ports have series for zones. Only selected Services have series for endpoints, and a Service whose endpoints
// exceed the budget has none, without an effect on the others.
func TestSeriesOfZonesAndEndpoints(t *testing.T) {
	f := busy(3)
	for i, n := range []int{5, MostEndpointSeries, 7} {
		name := fmt.Sprint("svc-", i)
		f.zones = append(f.zones, counters.Zone{Namespace: "shop", Service: name, Zone: "a", Connections: uint64(i + 1)})
		for e := range n {
			f.endpoints = append(f.endpoints, counters.Endpoint{Namespace: "shop", Service: name, Port: "http", Connections: 1,
				To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(e >> 8), byte(e)}), 80), Place: model.Place{Zone: "a", Node: "n"}})
		}
	}
	reg := prometheus.NewPedanticRegistry()
	var leftOut []string
	RegisterServices(reg, f, Series{Ports: 2, Endpoints: []string{"shop/svc-2", "shop/svc-1", "shop/svc-0", "shop/svc-0"}, LeftOut: func(s string, series int) {
		leftOut = append(leftOut, fmt.Sprint(s, " ", series))
	}})
	want := map[string]float64{"shop,svc-1,a": 2, "shop,svc-2,a": 3}
	for range 2 {
		lab.Same(t, want, values(t, reg, "kubenftproxy_service_zone_connections_total"), "zones")
		if got := len(values(t, reg, "kubenftproxy_endpoint_connections_total")); got != 12 {
			t.Errorf("%d series of endpoints, want 12", got)
		}
		if got := values(t, reg, "kubenftproxy_endpoint_series_left_out")[""]; got != 1 {
			t.Errorf("%v Services are left out, want 1", got)
		}
	}
	lab.Same(t, []string{fmt.Sprint("shop/svc-1 ", MostEndpointSeries)}, leftOut, "reports")
}

const perService = "kubenftproxy_service_connections_total"

func TestOnlyTheBusiestServicesHaveSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := busy(1000)
	RegisterServices(reg, f, Series{Ports: 3})
	want := map[string]float64{"shop,http,svc-999": 1000, "shop,http,svc-998": 999, "shop,http,svc-997": 998}
	lab.Same(t, want, values(t, reg, perService), "the busiest")
	if got := values(t, reg, "kubenftproxy_connections_total")[""]; got != 500500 {
		t.Errorf("got %v connections in all, want 500500", got)
	}
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
	RegisterServices(reg, busy(5), Series{Ports: 0})
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
	RegisterServices(reg, f, Series{Ports: 1})
	f.err = errors.New("no")
	if got := values(t, reg, perService); got["shop,http,svc-0"] != 1 {
		t.Errorf("got %v, want what was known before", got)
	}
	f.err = nil
	lab.Same(t, map[string]float64{"done": 1, "failed": 1}, values(t, reg, "kubenftproxy_connection_readings_total"), "readings")
}
