// The program event measures one EndpointSlice event of Cilium's load balancer: one endpoint of a Service is replaced, beside a thousand small
// Services. The measurement begins with the parsed slice, and ends when Cilium's reconciler has written the change to maps in memory. CILIUM=1 make bench runs it
// beside BenchmarkEvent of pkg/proxy, which makes the same changes.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"k8s.io/apimachinery/pkg/runtime"

	cmtypes "github.com/cilium/cilium/pkg/clustermesh/types"
	"github.com/cilium/cilium/pkg/datapath/tables"
	"github.com/cilium/cilium/pkg/hive"
	"github.com/cilium/cilium/pkg/k8s"
	k8sclient "github.com/cilium/cilium/pkg/k8s/client/testutils"
	"github.com/cilium/cilium/pkg/k8s/resource"
	corev1 "github.com/cilium/cilium/pkg/k8s/slim/k8s/api/core/v1"
	discoveryv1 "github.com/cilium/cilium/pkg/k8s/slim/k8s/api/discovery/v1"
	slimmeta "github.com/cilium/cilium/pkg/k8s/slim/k8s/apis/meta/v1"
	k8stables "github.com/cilium/cilium/pkg/k8s/tables"
	"github.com/cilium/cilium/pkg/loadbalancer"
	"github.com/cilium/cilium/pkg/loadbalancer/maps"
	lbreconciler "github.com/cilium/cilium/pkg/loadbalancer/reconciler"
	"github.com/cilium/cilium/pkg/loadbalancer/reflectors"
	"github.com/cilium/cilium/pkg/loadbalancer/writer"
	"github.com/cilium/cilium/pkg/maglev"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/source"
)

// perSlice is the number of endpoints that the EndpointSlice controller puts into a slice.
const perSlice = 100

// agent is the part of Cilium's agent from the parsed objects to the maps.
type agent struct {
	services  chan resource.Event[*corev1.Service]
	endpoints chan resource.Event[*k8s.Endpoints]
	db        *statedb.DB
	writer    *writer.Writer
	stop      func()
}

func start(log *slog.Logger) *agent {
	option.Config.EnableIPv4 = true
	a := &agent{services: make(chan resource.Event[*corev1.Service], 1000), endpoints: make(chan resource.Event[*k8s.Endpoints], 1000)}
	table, err := maglev.UserConfig{TableSize: 1021, HashSeed: maglev.DefaultHashSeed}.ToConfig()
	must(err)
	user := loadbalancer.DefaultUserConfig
	user.ReflectorWaitTime = time.Millisecond // the time for which Cilium collects events; its default is half a second
	h := hive.New(cell.Module("event", "The load balancer",
		k8sclient.FakeClientCell(), node.LocalNodeStoreTestCell, k8stables.PodTableCell,
		cell.Provide(
			func() cmtypes.ClusterInfo { return cmtypes.ClusterInfo{} },
			func() loadbalancer.Config {
				return loadbalancer.Config{UserConfig: user, NodePortMin: loadbalancer.NodePortMinDefault, NodePortMax: loadbalancer.NodePortMaxDefault}
			},
			func() loadbalancer.ExternalConfig {
				return loadbalancer.ExternalConfig{ZoneMapper: &option.DaemonConfig{}, EnableIPv4: true, EnableIPv6: true}
			},
			func() maps.LBMaps { return maps.NewFakeLBMaps() },
			func(lc cell.Lifecycle) (*maglev.Maglev, maglev.Config) { return maglev.New(table, lc), table },
			func() (<-chan resource.Event[*corev1.Service], <-chan resource.Event[*k8s.Endpoints]) {
				return a.services, a.endpoints
			},
			reflectors.EventStreamForBenchmark, reflectors.NetnsCookieSupportFunc,
			tables.NewNodeAddressTable, statedb.RWTable[tables.NodeAddress].ToTable, source.NewSources,
		),
		writer.Cell, cell.Invoke(reflectors.RegisterK8sReflector), lbreconciler.Cell,
		cell.Invoke(func(db *statedb.DB, w *writer.Writer) { a.db, a.writer = db, w }),
	))
	must(h.Start(log, context.Background()))
	a.stop = func() { must(h.Stop(log, context.Background())) }
	return a
}

func upsert[T runtime.Object](o T) resource.Event[T] {
	return resource.Event[T]{Object: o, Key: resource.NewKey(o), Kind: resource.Upsert, Done: func(error) {}}
}

func service(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: slimmeta.ObjectMeta{Namespace: "test", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), ClusterIPs: []string{ip.String()},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
	}
}

// slice returns a parsed slice of a Service.
func slice(log *slog.Logger, service string, number int, addresses []netip.Addr) *k8s.Endpoints {
	name, protocol, port, ready := "http", corev1.ProtocolTCP, int32(8080), true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  slimmeta.ObjectMeta{Namespace: "test", Name: fmt.Sprint(service, "-", number), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return k8s.ParseEndpointSliceV1(log, s)
}

func address(first byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)})
}

// await waits for the given number of backends, and until all frontends are reconciled.
func (a *agent) await(backends int) {
	for {
		txn := a.db.ReadTxn()
		all, changed := a.writer.Frontends().AllWatch(txn)
		done := a.writer.Backends().NumObjects(txn) == backends
		for f := range all {
			done = done && f.Status.Kind == reconciler.StatusKindDone
		}
		if done {
			return
		}
		<-changed
	}
}

// awaitChange waits until the reconciler is done with one frontend, after its revision has changed.
func (a *agent) awaitChange(f loadbalancer.L3n4Addr, before statedb.Revision) {
	for {
		now, revision, changed, found := a.writer.Frontends().GetWatch(a.db.ReadTxn(), loadbalancer.FrontendByAddress(f))
		if found && revision > before && now.Status.Kind == reconciler.StatusKindDone {
			return
		}
		<-changed
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure returns the processor time of one event, and the median of the times from the event to the maps.
func measure(log *slog.Logger, endpoints, events int) (processor, median time.Duration) {
	a := start(log)
	defer a.stop()
	const small, each = 1000, 10
	for i := range small {
		name := fmt.Sprint("small-", i)
		list := make([]netip.Addr, each)
		for e := range list {
			list[e] = address(11, i*each+e)
		}
		a.endpoints <- upsert(slice(log, name, 0, list))
		a.services <- upsert(service(name, address(10, i+1)))
	}
	vip := address(10, small+1)
	a.services <- upsert(service("large", vip))
	var states [2][]*k8s.Endpoints // of each slice, with one endpoint that differs
	for s := 0; s < endpoints; s += perSlice {
		list := make([]netip.Addr, min(perSlice, endpoints-s))
		for e := range list {
			list[e] = address(12, s+e)
		}
		states[0] = append(states[0], slice(log, "large", s, list))
		list[0] = address(13, s)
		states[1] = append(states[1], slice(log, "large", s, list))
		a.endpoints <- upsert(states[0][len(states[0])-1])
	}
	a.await(small*each + endpoints)
	frontend := loadbalancer.NewL3n4Addr(loadbalancer.TCP, cmtypes.AddrClusterFrom(vip, 0), 80, loadbalancer.ScopeExternal)
	times := make([]time.Duration, events)
	before := processorTime()
	for i := range times {
		_, revision, _ := a.writer.Frontends().Get(a.db.ReadTxn(), loadbalancer.FrontendByAddress(frontend))
		n := len(states[0])
		begun := time.Now()
		a.endpoints <- upsert(states[1-i/n%2][i%n])
		a.awaitChange(frontend, revision)
		times[i] = time.Since(begun)
	}
	processor = (processorTime() - before) / time.Duration(events)
	slices.Sort(times)
	return processor, times[events/2]
}

func main() {
	events := flag.Int("events", 100, "number of events")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	for _, endpoints := range []int{1, 100, 1000, 10_000} {
		processor, median := measure(log, endpoints, *events)
		fmt.Printf("CiliumEvent/%-6d %s of a processor for an event; median until the maps are written %s\n", endpoints,
			strings.TrimSpace(fmt.Sprintf("%10v", processor.Round(time.Microsecond))), median.Round(time.Microsecond))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
