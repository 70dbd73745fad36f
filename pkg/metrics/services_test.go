package metrics

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/counters"
)

// fakeCounts are given counts.
type fakeCounts struct {
	ports []counters.Port
	err   error
}

// busy returns the counts of a number of Services: svc-0 has 1 connection, svc-1 has 2, and so on.
func busy(services int) *fakeCounts {
	f := &fakeCounts{}
	for i := range services {
		p := counters.Port{Namespace: "shop", Service: fmt.Sprintf("svc-%d", i), Port: "http"}
		p.Connections, p.Refused[counters.NoEndpoints] = uint64(i+1), 1
		f.ports = append(f.ports, p)
	}
	return f
}

func (f *fakeCounts) Await(time.Duration) error { return f.err }

func (f *fakeCounts) Total() (c counters.Counts) {
	for _, p := range f.ports {
		c.Connections += p.Connections
		c.Refused[counters.NoEndpoints] += p.Refused[counters.NoEndpoints]
	}
	return c
}

func (f *fakeCounts) Ports() []counters.Port { return append([]counters.Port{}, f.ports...) }

const perService = "kubenftproxy_service_connections_total"

func TestOnlyTheBusiestServicesHaveSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := busy(1000)
	RegisterServices(reg, f, 3)
	want := map[string]float64{"shop,http,svc-999": 1000, "shop,http,svc-998": 999, "shop,http,svc-997": 998}
	if diff := cmp.Diff(want, values(t, reg, perService)); diff != "" {
		t.Errorf("the busiest (-want +got):\n%s", diff)
	}
	if got := values(t, reg, "kubenftproxy_connections_total")[""]; got != 500500 {
		t.Errorf("got %v connections in all, want 500500", got)
	}
	// A shown series stays, unless another one has twice its count.
	f.ports[0].Connections = 1990
	if diff := cmp.Diff(want, values(t, reg, perService)); diff != "" {
		t.Errorf("after a Service has become busier (-want +got):\n%s", diff)
	}
	f.ports[0].Connections = 5000
	delete(want, "shop,http,svc-997")
	want["shop,http,svc-0"] = 5000
	if diff := cmp.Diff(want, values(t, reg, perService)); diff != "" {
		t.Errorf("after a Service has become much busier (-want +got):\n%s", diff)
	}
}

func TestNoServiceHasSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	RegisterServices(reg, busy(5), 0)
	for _, name := range []string{perService, "kubenftproxy_service_refused_total"} {
		if got := values(t, reg, name); len(got) > 0 {
			t.Errorf("%s has series: %v", name, got)
		}
	}
	want := map[string]float64{
		"no_endpoints": 5, "no_local_endpoints": 0, "source_range": 0, "unused_address": 0, "unused_port": 0,
	}
	if diff := cmp.Diff(want, values(t, reg, "kubenftproxy_refused_total")); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
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
	if diff := cmp.Diff(map[string]float64{"done": 1, "failed": 1}, values(t, reg, "kubenftproxy_connection_readings_total")); diff != "" {
		t.Errorf("readings (-want +got):\n%s", diff)
	}
}
