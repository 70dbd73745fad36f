//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	ruletable "github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/soak"
)

// stormy is a node whose program follows an in-memory API server, which can make far more changes in a second than the original.
type stormy struct {
	*testing.T
	*lab.Lab
	*soak.API
	d        *daemon
	kernel   *ruletable.Conn
	services int
	made     int
}

// storms are changes during a flush of the ruleset.
var storms = []struct {
	name string
	blow func(context.Context, *stormy)
}{
	{"100 changes a second", func(ctx context.Context, s *stormy) { s.changes(ctx, 100) }},
	{"1,000 changes a second", func(ctx context.Context, s *stormy) { s.changes(ctx, 1000) }},
	{"1,000 Services at once", func(_ context.Context, s *stormy) { s.changeAll(min(1000, s.services)) }},
	{"all Services at once", func(_ context.Context, s *stormy) { s.changeAll(s.services) }},
	{"as many changes as are read", func(ctx context.Context, s *stormy) { s.changes(ctx, 0) }},
}

// TestRepairInAStorm flushes the ruleset while Services change. Changes are collected for a second, as in kube-proxy, but a
// repair does not wait for that. BIG is the number of Services, 1,000 by default, and REPAIRS the number of repetitions of each
// storm.
func TestRepairInAStorm(t *testing.T) {
	services, times := 1000, lab.Setting(t, "REPAIRS", 4)
	if os.Getenv("BIG") != "" {
		services = bigSize(t)
	}
	s := newStormy(t, services)
	for _, storm := range storms {
		t.Run(storm.name, func(t *testing.T) {
			var took []time.Duration
			for range times {
				took = append(took, s.flushIn(t, storm.blow))
			}
			slices.Sort(took)
			at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100].Round(time.Millisecond) }
			t.Logf("%d flushes, %d Services with %d endpoints: repaired after %v (median), p90 %v, longest %v", times, services, endpointsEach,
				at(50), at(90), at(100))
			if median := at(50); median > time.Second {
				t.Errorf("repaired after %v (median), want a second at most", median)
			}
		})
	}
}

// flushIn flushes the ruleset in a storm, and returns the time without tables.
func (s *stormy) flushIn(t *testing.T, blow func(context.Context, *stormy)) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var storm sync.WaitGroup
	defer storm.Wait()
	defer cancel()
	storm.Go(func() { blow(ctx, s) })
	time.Sleep(rand.N(600 * time.Millisecond))
	before := s.tables(t)
	var flush sync.WaitGroup
	flush.Go(func() {
		if out, err := s.Node.Command(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Errorf("flush: %v: %s", err, out)
		}
	})
	defer flush.Wait()
	await := func(what string, is func(now tableNumbers) bool) time.Time {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if is(s.tables(t)) {
				return time.Now()
			}
		}
		t.Fatalf("the tables aren't %s after %v", what, patience)
		return time.Time{}
	}
	// The tables may be back before the test has seen them missing: then their handles differ.
	start := await("flushed", func(now tableNumbers) bool { return now != before })
	back := func(now tableNumbers) bool { return now[0] > before[0] && now[1] > before[1] }
	return await("back", back).Sub(start)
}

// tableNumbers are the handles of the tables of both families; 0 is none.
type tableNumbers [2]uint64

func (s *stormy) tables(t *testing.T) (now tableNumbers) {
	t.Helper()
	for i, f := range inet.Families {
		info, err := s.kernel.Table(f, "kube-nftproxy")
		must(t, err)
		now[i] = info.Handle
	}
	return now
}

// changes replaces endpoints at a rate in changes per second, or as fast as the program reads if it is 0, until the context ends.
func (s *stormy) changes(ctx context.Context, rate int) {
	start := time.Now()
	for made := 0; ctx.Err() == nil; made++ {
		s.change(rand.IntN(s.services))
		switch {
		case rate == 0 && made%256 == 0:
			for s.Lag() > 4096 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		case rate > 0:
			time.Sleep(time.Until(start.Add(time.Duration(made+1) * time.Second / time.Duration(rate))))
		}
	}
}

func (s *stormy) changeAll(services int) {
	for i := range services {
		s.change(i)
	}
}

// change replaces an endpoint of a Service.
func (s *stormy) change(i int) {
	s.made++
	eps := stormSlice(i)
	eps.Endpoints[s.made%endpointsEach].Addresses[0] = netip.AddrFrom4([4]byte{10, 200, byte(s.made >> 8), byte(s.made)}).String()
	if err := s.Put("endpointslices", eps); err != nil {
		s.Error(err)
	}
}

func newStormy(t *testing.T, services int) *stormy {
	t.Helper()
	s := &stormy{T: t, Lab: lab.ForTest(t, lab.Config{Pods: 2}), services: services}
	var kubeconfig string
	s.API, kubeconfig = soak.ForTest(t, s.Node)
	var err error
	for i := range services {
		err = errors.Join(err, s.Put("services", stormService(i)), s.Put("endpointslices", stormSlice(i)))
	}
	must(t, err)
	s.d = run(t, proxy.Config{Host: s.Node, Path: program, Args: []string{
		"--kubeconfig", kubeconfig, "--hostname-override", nodeName, "--cluster-cidr", "10.244.0.0/16", "-v", "2", "--control-socket=",
		"--min-sync-period", "1s",
	}})
	s.d.awaitIdle(time.Minute)
	must(t, s.Node.Do(func() (err error) { s.kernel, err = ruletable.Open(); return err }))
	t.Cleanup(func() { _ = s.kernel.Close() })
	return s
}

func stormName(i int) string { return fmt.Sprintf("service-%d", i) }

func stormService(i int) *corev1.Service {
	s := service(stormName(i))
	s.UID, s.Spec.Ports = types.UID(s.Name), s.Spec.Ports[:1]
	s.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}).String()
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	return s
}

func stormSlice(i int) *discoveryv1.EndpointSlice {
	s := slice(stormName(i), stormName(i)+"-1")
	s.AddressType, s.Ports = discoveryv1.AddressTypeIPv4, s.Ports[:1]
	for n := range endpointsEach {
		s.Endpoints = append(s.Endpoints, elsewhere(endpoint(netip.AddrFrom4([4]byte{10, byte(128 + n), byte(i >> 8), byte(i)}))))
	}
	return s
}
