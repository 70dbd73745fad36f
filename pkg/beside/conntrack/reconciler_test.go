package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A fakeTable holds flows and records the time of each read.
type fakeTable struct {
	mu    sync.Mutex
	start time.Time
	flows []Flow
	log   []string
	// takes is the duration of each read.
	takes time.Duration
	err   error
	// passes holds the results of all passes.
	passes []error
}

func (f *fakeTable) Delete(_ context.Context, family inet.Family, selected Selection, stale func(*Flow) bool) (out Outcome, err error) {
	time.Sleep(f.takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	entry := fmt.Sprintf("%v %s %s", time.Since(f.start), family, [...]string{All: "all", UDP: "UDP", Unreplied: "unreplied"}[selected])
	if f.err != nil {
		f.log = append(f.log, entry+" failed")
		return out, f.err
	}
	for i := range f.flows {
		if inet.FamilyOf(f.flows[i].Destination.Addr()) != family {
			continue
		}
		out.Seen++
		if stale(&f.flows[i]) {
			out.Deleted++
		}
	}
	f.log = append(f.log, fmt.Sprintf("%s deleted=%d", entry, out.Deleted))
	return out, nil
}

func (f *fakeTable) Close() error { return nil }

func (f *fakeTable) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeTable) FlowsDeleted(inet.Family, time.Duration, int) {}
func (f *fakeTable) FlowsSearched(_ inet.Family, err error)       { f.passes = append(f.passes, err) }

func start(t *testing.T, f *fakeTable) *Reconciler {
	r, _ := startAndStop(t, f)
	return r
}

// startAndStop also returns a function that ends the reconciler.
func startAndStop(t *testing.T, f *fakeTable) (r *Reconciler, stop func()) {
	f.start = time.Now()
	r = New(Config{Open: func() (Table, error) { return f, nil }, Metrics: f})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return r, stop
}

func (f *fakeTable) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	lab.Same(t, want, f.log, "passes")
}

// removed returns the state of a frontend without endpoints.
func removed(p inet.Protocol, at string) *Desired {
	d := &Desired{}
	d.Frontend(key(p, at), serving(nil))
	return d
}

// A flow that begins during a pass may meet newer rules than those of the pass. Then the pass must keep it.
func TestAPassKeepsFlowsThatANewerRequestAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{takes: 100 * time.Millisecond, flows: []Flow{
			flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:53"), // permitted by the later request
			flow(inet.UDP, "10.96.0.1:53", "10.244.0.9:53"), // stale by both requests
			flow(inet.UDP, "10.96.0.2:53", "10.244.0.1:53"), // not in the later request
		}}
		r := start(t, f)
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		r.Request(removed(inet.UDP, "10.96.0.2:53"))
		time.Sleep(50 * time.Millisecond)
		later := &Desired{}
		later.Frontend(key(inet.UDP, "10.96.0.1:53"), serving(endpoints("10.244.0.1:53")))
		r.Request(later)
		time.Sleep(100 * time.Millisecond)
		f.expect(t, "120ms IPv4 UDP deleted=2")
	})
}

func TestRequestsBecomeOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{flows: []Flow{
			flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:53"),
			flow(inet.UDP, "10.96.0.2:53", "10.244.0.1:53"),
		}}
		r := start(t, f)
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(100 * time.Millisecond)
		f.expect(t, "20ms IPv4 UDP deleted=1")
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(100 * time.Millisecond)
		r.Request(removed(inet.UDP, "10.96.0.2:53"))
		all := removed(inet.UDP, "[fd00::1]:53")
		r.Request(all)
		time.Sleep(10 * time.Second)
		want := []string{
			"20ms IPv4 UDP deleted=1", "1.02s IPv4 UDP deleted=2", "1.02s IPv6 UDP deleted=0",
		}
		f.expect(t, want...)
		// The reconciler keeps no request after its pass.
		r.Request(removed(inet.UDP, "10.96.0.9:53"))
		time.Sleep(time.Second)
		f.expect(t, append(want, "10.22s IPv4 UDP deleted=0")...)
	})
}

// A pass only for flows without replies of TCP or SCTP is not urgent, unless a request says so or changes the allowed
// sources.
func TestPassesForOtherProtocolsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{flows: []Flow{flow(inet.TCP, "10.96.0.1:80", "10.244.0.1:80")}}
		r := start(t, f)
		r.Request(removed(inet.TCP, "10.96.0.1:80"))
		time.Sleep(3 * time.Second)
		f.expect(t)
		r.Request(removed(inet.TCP, "10.96.0.1:80"))
		time.Sleep(3 * time.Second)
		want := []string{"5s IPv4 unreplied deleted=1"}
		f.expect(t, want...)
		r.Request(removed(inet.TCP, "10.96.0.1:80"))
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(time.Second)
		want = append(want, "6.02s IPv4 UDP deleted=1", "6.02s IPv4 unreplied deleted=1")
		f.expect(t, want...)
		urgent := removed(inet.TCP, "10.96.0.1:80")
		urgent.Urgent = true
		time.Sleep(time.Second)
		r.Request(urgent)
		time.Sleep(time.Second)
		f.expect(t, append(want, "8.02s IPv4 unreplied deleted=1")...)
	})
}

func TestLongPassesAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{takes: 2 * time.Second}
		r := start(t, f)
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(time.Second)
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(20 * time.Second)
		f.expect(t, "2.02s IPv4 UDP deleted=0", "12.02s IPv4 UDP deleted=0")
	})
}

// One namespace requests passes all the time, and its passes are a fifth of the time. A request of another namespace
// waits for at most the running pass and a pause of the same length.
func TestANamespacePaysForItsOwnPasses(t *testing.T) {
	const takes = 400 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{takes: takes}
		r := start(t, f)
		request := func(namespace, at string) {
			d := removed(inet.UDP, at)
			d.For(namespace)
			r.Request(d)
		}
		flap := func(d time.Duration) {
			for range d / (50 * time.Millisecond) {
				request("evil", "10.96.0.1:53")
				time.Sleep(50 * time.Millisecond)
			}
		}
		flap(20 * time.Second)
		if n := len(f.begun(takes)); n < 8 || n > 11 {
			t.Errorf("%d passes of %v for one namespace in 20s", n, takes)
		}
		for i := range 40 {
			flap(3*time.Second + time.Duration(i)*50*time.Millisecond)
			requested := time.Since(f.start)
			request("bank", "10.96.0.2:53")
			flap(2 * time.Second)
			passes := f.begun(takes)
			own := passes[slices.IndexFunc(passes, func(begun time.Duration) bool { return begun >= requested })]
			if waits := own - requested; waits > 2*takes {
				t.Errorf("bank's request of %v waits for %v", requested, waits)
			}
		}
	})
}

// Requests of very many namespaces take half of the time at most.
func TestAllPassesTakeHalfOfTheTime(t *testing.T) {
	const takes, seconds = 100 * time.Millisecond, 20
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{takes: takes}
		r, stop := startAndStop(t, f)
		for i := range 100 * seconds {
			d := removed(inet.UDP, "10.96.0.1:53")
			d.For(fmt.Sprint("tenant-", i))
			r.Request(d)
			time.Sleep(time.Second / 100)
		}
		if n := len(f.begun(takes)); n < 4*seconds || n > 5*seconds {
			t.Errorf("%d passes of %v in %d seconds", n, takes, seconds)
		}
		stop()
		if n := len(r.owing); n > 500 {
			t.Errorf("%d namespaces are remembered", n)
		}
	})
}

// begun returns the times at which passes of a given duration began.
func (f *fakeTable) begun(takes time.Duration) (list []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, entry := range f.log {
		end, _ := time.ParseDuration(strings.Fields(entry)[0])
		list = append(list, end-takes)
	}
	return list
}

func TestFailedPassIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTable{
			err: errors.New("no table"),
			flows: []Flow{
				flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:53"),
				flow(inet.UDP, "10.96.0.2:53", "10.244.0.1:53"),
			},
		}
		r := start(t, f)
		r.Request(removed(inet.UDP, "10.96.0.1:53"))
		time.Sleep(5 * time.Second)
		want := []string{"20ms IPv4 UDP failed"}
		f.expect(t, want...)
		r.Request(removed(inet.UDP, "10.96.0.2:53"))
		time.Sleep(5 * time.Second)
		want = append(want, "5.02s IPv4 UDP failed")
		f.expect(t, want...)
		// Too many deleted frontends are dropped.
		many := &Desired{}
		for i := range maxGone + 1 {
			many.Gone(model.Key{Addr: netip.AddrFrom4([4]byte{10, 97, byte(i >> 16)}), Port: uint16(i), Protocol: inet.UDP})
		}
		last := r.Request(many)
		time.Sleep(time.Second)
		want = append(want, "10.02s IPv4 UDP failed")
		f.expect(t, want...)
		lab.Same(t, last, r.Handled(), "the last request that is done")
		f.fail(nil)
		time.Sleep(time.Hour)
		f.expect(t, append(want, "40.04s IPv4 UDP deleted=2")...)
		if len(f.passes) != 4 || f.passes[0] == nil || f.passes[1] == nil || f.passes[2] == nil || f.passes[3] != nil {
			t.Errorf("results of passes: %v, want three errors and a success", f.passes)
		}
	})
}
