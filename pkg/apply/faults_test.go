package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/fault"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// faulty is a Kernel whose netlink calls can fail. Packets pass through its tables all the time.
type faulty struct {
	*wire
	k     *Kernel
	p     *plan.Planner
	calls *fault.Calls
	// conn and listener are the descriptors of the Kernel's first two sockets.
	conn, listener int
	// step counts the changes.
	step int

	mu sync.Mutex
	// right are the endpoints at which a packet to the changing Service may arrive.
	right map[netip.AddrPort]bool
	sent  atomic.Int64
	wrong []string
	// still is locked while no packets are sent, because the test has altered the tables.
	still  sync.Mutex
	paused bool
	end    chan struct{}
	ended  sync.WaitGroup
}

// newFaulty returns a faulty Kernel after its first sync.
func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{wire: newWire(t), p: newStickyPlanner(sticky(0, 0, 0)), right: map[netip.AddrPort]bool{}, end: make(chan struct{})}
	f.calls = fault.Intercept(t)
	before := netfilterSockets(t)
	f.k = open(t)
	f.conn = another(t, before)
	before = append(before, f.conn)
	listen(t, f.k)
	f.listener = another(t, before)
	f.change()
	f.sync()
	begun := make(chan struct{})
	f.ended.Go(func() {
		f.round(1)
		close(begun)
		f.traffic()
	})
	<-begun
	t.Cleanup(func() {
		f.resume()
		close(f.end)
		f.ended.Wait()
		for _, w := range f.wrong {
			t.Error(w)
		}
	})
	return f
}

// netfilterSockets returns the process's netfilter sockets in the calling thread's network namespace.
func netfilterSockets(t testing.TB) (fds []int) {
	t.Helper()
	one, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	lab.Must(t, err)
	here, err := unix.GetsockoptUint64(one, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err = errors.Join(err, unix.Close(one)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	lab.Must(t, err)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_NETLINK {
			continue
		}
		if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || cookie != here {
			continue
		}
		if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err == nil && protocol == unix.NETLINK_NETFILTER {
			fds = append(fds, fd)
		}
	}
	return fds
}

// another returns the netfilter socket that is not in the list before.
func another(t testing.TB, before []int) int {
	t.Helper()
	for _, fd := range netfilterSockets(t) {
		if !slices.Contains(before, fd) {
			return fd
		}
	}
	t.Fatal("no socket was opened")
	return -1
}

// change gives Service 1 two other endpoints, and adds or removes its node port. Until the next sync, packets may arrive at the old endpoints or at the
// new ones.
func (f *faulty) change() {
	f.step++
	first := 2 * f.step % 200
	s := sticky(1, 0, first, first+1)
	if f.step%2 == 0 {
		for _, p := range s.Ports {
			p.Frontends = p.Frontends[:2]
		}
	}
	f.mu.Lock()
	for _, family := range inet.Families {
		f.right[pod(family, first)], f.right[pod(family, first+1)] = true, true
	}
	f.mu.Unlock()
	f.p.Set(s.Name, s)
}

// sync makes a sync, which must succeed. After that, packets may arrive only at the new endpoints.
func (f *faulty) sync() Result {
	f.Helper()
	r, err := f.k.Sync(f.p)
	if err != nil {
		f.Fatalf("sync without a fault: %v", err)
	}
	f.synced()
	return r
}

func (f *faulty) synced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.right)
	first := 2 * f.step % 200
	for _, family := range inet.Families {
		f.right[pod(family, first)], f.right[pod(family, first+1)] = true, true
	}
}

// traffic sends packets of new clients to both Services until end is closed.
func (f *faulty) traffic() {
	for i := 2; ; i++ {
		select {
		case <-f.end:
			return
		case <-time.After(200 * time.Microsecond):
		}
		f.still.Lock()
		f.round(i)
		f.still.Unlock()
	}
}

// round sends a packet to each Service.
func (f *faulty) round(i int) {
	family := inet.Families[i%2]
	f.probe(family, i, destinations(family, 0)[i/2%3], func(at netip.AddrPort) bool { return at == pod(family, 0) })
	f.mu.Lock()
	before := make([]netip.AddrPort, 0, len(f.right))
	for at := range f.right {
		before = append(before, at)
	}
	f.mu.Unlock()
	f.probe(family, i+1<<20, destinations(family, 1)[i/2%2], func(at netip.AddrPort) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.right[at] || slices.Contains(before, at)
	})
}

// pause stops the packets until resume.
func (f *faulty) pause() {
	if !f.paused {
		f.still.Lock()
		f.paused = true
	}
}

func (f *faulty) resume() {
	if f.paused {
		f.still.Unlock()
		f.paused = false
	}
}

// probe sends one packet, and records a failure if the packet arrives at a wrong endpoint or not at all.
func (f *faulty) probe(family inet.Family, client int, to netip.AddrPort, right func(netip.AddrPort) bool) {
	sent := f.sent.Add(1)
	f.port = questionPort + uint16(client)%60000
	if _, err := unix.Write(f.clients, f.frame(family, client, to)); err != nil {
		f.wrong = append(f.wrong, err.Error())
		return
	}
	for {
		i, at, ok := f.read(5 * time.Second)
		switch {
		case ok && i != client:
			continue // the kernel duplicated an earlier packet
		case !ok:
			f.wrong = append(f.wrong, fmt.Sprintf("a packet to %s, the %dth, did not arrive", to, sent))
		case !right(at):
			f.wrong = append(f.wrong, fmt.Sprintf("a packet to %s, the %dth, arrived at %s", to, sent, at))
		}
		return
	}
}

// whole fails unless the kernel's elements equal the plan, and the next change is a partial sync.
func (f *faulty) whole(when string) {
	f.Helper()
	f.calls.Decide(nil)
	f.settle(when)
	if diff := difference(f.TB, f.k, f.p); diff != "" {
		f.Fatalf("%s: elements (-planned +in the kernel):\n%s", when, diff)
	}
	f.change()
	if r := f.sync(); r.Kind != Partial {
		f.Errorf("%s: the next change was %s (%s)", when, r.Kind, r.Why)
	}
}

// settle checks the ruleset and syncs, as the loop does, until a check of all elements has found no difference.
func (f *faulty) settle(when string) {
	f.Helper()
	f.k.check.due = true
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		yes, err := f.k.CheckRuleset()
		if err != nil {
			f.Fatalf("%s: CheckRuleset() = %v", when, err)
		}
		if yes {
			f.k.Doubt()
		}
		f.sync()
		if !yes && !f.k.check.due && f.k.check.answer == nil {
			return
		}
		if time.Since(begin) > 20*time.Second {
			f.Fatalf("%s: each check finds a change", when)
		}
	}
}

// difference compares the kernel with the plan.
func difference(t testing.TB, k *Kernel, p *plan.Planner) string {
	t.Helper()
	want, got := planned(k, p), inKernel(t, k, p)
	if slices.Equal(want, got) {
		return ""
	}
	return strings.Join(want, "\n") + "\n---\n" + strings.Join(got, "\n")
}

// TestAFailedBatchDeletesADeletedFrontendLater: a batch that only deletes elements of the sets deleted-udp fails. The
// state of the tables does not have these elements.
func TestAFailedBatchDeletesADeletedFrontendLater(t *testing.T) {
	lab.EnterNamespace(t)
	calls := fault.Intercept(t)
	k, p := open(t), plan.New(options())
	p.Begin(nil, nil, func([]types.NamespacedName) {})
	s := plain(1, 2, 0)
	s.Ports[0].Protocol, s.Ports[0].Frontends[0].Protocol = inet.UDP, inet.UDP
	p.Set(s.Name, s)
	mustSync(t, k, p, Full)
	p.Set(s.Name, nil)
	mustSync(t, k, p, Partial)
	deleted := func() int {
		list, err := k.conn.Elements(plan.SetsNamed(p.Tables(), plan.DeletedUDPSet)[inet.IPv4])
		lab.Must(t, err)
		return len(list)
	}
	lab.Same(t, 1, deleted(), "elements of deleted-udp after the deletion of the Service")
	p.Flows().Deleted([]model.Key{s.Ports[0].Frontends[0].Key})
	calls.Decide(nth(unix.SYS_SENDTO, 0, 1, fails(unix.ENOBUFS)))
	if r, err := k.Sync(p); err == nil {
		t.Fatalf("the batch did not fail: %v", r)
	}
	calls.Decide(nil)
	_, err := k.Sync(p)
	lab.Must(t, err)
	lab.Same(t, 0, deleted(), "elements of deleted-udp after the next sync")
	mustSync(t, k, p, Nothing)
}

// nth returns a decision that skips n system calls with the given number, and injects a fault into the next calls, as many as times.
func nth(call, n, times int, do func(*fault.Call) fault.Result) func(*fault.Call) fault.Result {
	count := 0
	return func(c *fault.Call) fault.Result {
		if c.Number != call || !isNetfilter(c) {
			return fault.Result{}
		}
		if count++; count <= n || count > n+times {
			return fault.Result{}
		}
		return do(c)
	}
}

// isNetfilter reports whether a call is for a netfilter socket. The test's own tools use other sockets.
func isNetfilter(c *fault.Call) bool {
	protocol, err := unix.GetsockoptInt(c.Socket(), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err != nil || protocol == unix.NETLINK_NETFILTER
}

func fails(errno unix.Errno) func(*fault.Call) fault.Result {
	return func(*fault.Call) fault.Result { return fault.Result{Errno: errno} }
}

// alters returns a fault that changes the kernel's answer.
func alters(change func([]byte) []byte) func(*fault.Call) fault.Result {
	return func(c *fault.Call) fault.Result {
		b, err := c.Receive()
		var errno unix.Errno
		if errors.As(err, &errno) {
			return fault.Result{Errno: errno}
		}
		return c.Return(change(b))
	}
}

// eachHeader changes the header of every message.
func eachHeader(change func(header []byte)) func([]byte) []byte {
	return func(b []byte) []byte {
		for rest := b; len(rest) >= unix.NLMSG_HDRLEN; {
			n := int(binary.NativeEndian.Uint32(rest))
			change(rest[:unix.NLMSG_HDRLEN])
			rest = rest[min((n+3)&^3, len(rest)):]
		}
		return b
	}
}

// refuses returns a fault that answers a batch with an error, and does not send the batch to the kernel.
func refuses(errno unix.Errno) func() func(*fault.Call) fault.Result {
	return func() func(*fault.Call) fault.Result {
		var refused []byte
		return func(c *fault.Call) fault.Result {
			switch {
			case !isNetfilter(c):
			case c.Number == unix.SYS_SENDTO && isBatch(c.Sent()):
				sent := c.Sent()
				first := sent[binary.NativeEndian.Uint32(sent):]
				refused = binary.NativeEndian.AppendUint32(nil, 2*unix.NLMSG_HDRLEN+4)
				refused = binary.NativeEndian.AppendUint16(refused, unix.NLMSG_ERROR)
				refused = binary.NativeEndian.AppendUint16(refused, 0x100) // NLM_F_CAPPED
				refused = append(refused, first[8:16]...)
				refused = binary.NativeEndian.AppendUint32(refused, -uint32(errno))
				refused = append(refused, first[:unix.NLMSG_HDRLEN]...)
				return fault.Result{Done: true, Value: len(sent)}
			case c.Number == unix.SYS_RECVFROM && refused != nil:
				b := refused
				refused = nil
				return c.Return(b)
			}
			return fault.Result{}
		}
	}
}

func isBatch(b []byte) bool {
	return len(b) >= unix.NLMSG_HDRLEN && binary.NativeEndian.Uint16(b[4:]) == unix.NFNL_MSG_BATCH_BEGIN
}

// netlinkFaults are faults of the system calls of a Kernel.
var netlinkFaults = []struct {
	name string
	make func() func(*fault.Call) fault.Result
	// word is in the error of a sync with the fault; "" if the sync succeeds.
	word string
}{
	{"ENOBUFS on receive", each(unix.SYS_RECVFROM, fails(unix.ENOBUFS)), "no buffer space"},
	{"ENOMEM on receive", each(unix.SYS_RECVFROM, fails(unix.ENOMEM)), "cannot allocate memory"},
	{"EINTR on receive", func() func(*fault.Call) fault.Result { return nth(unix.SYS_RECVFROM, 0, 20, fails(unix.EINTR)) }, ""},
	{"ENOBUFS on send", each(unix.SYS_SENDTO, fails(unix.ENOBUFS)), "send batch"},
	{"ENOMEM on send", each(unix.SYS_SENDTO, fails(unix.ENOMEM)), "cannot allocate memory"},
	{"EBUSY on send", each(unix.SYS_SENDTO, fails(unix.EBUSY)), "busy"},
	{"EMSGSIZE on send", each(unix.SYS_SENDTO, fails(unix.EMSGSIZE)), "message too long"},
	{"EINTR on send", each(unix.SYS_SENDTO, fails(unix.EINTR)), "interrupted"},
	{"ENOBUFS for the send buffer", each(unix.SYS_SETSOCKOPT, fails(unix.ENOBUFS)), ""},
	{"EBUSY by the kernel", refuses(unix.EBUSY), "busy"},
	{"ENOMEM by the kernel", refuses(unix.ENOMEM), "cannot allocate memory"},
	{"ENOSPC by the kernel", refuses(unix.ENOSPC), "no space left"},
	{"ENFILE by the kernel, a full set", refuses(unix.ENFILE), "too many open files in system"},
	{"ERESTART by the kernel", refuses(unix.ERESTART), "restart"},
	{"truncated replies", each(unix.SYS_RECVFROM, alters(func(b []byte) []byte { return b[:len(b)/2] })), "truncated"},
	{"replies cut within a message's header", each(unix.SYS_RECVFROM, alters(func(b []byte) []byte { return b[:min(len(b), 7)] })), "truncated"},
	{"empty replies", each(unix.SYS_RECVFROM, alters(func([]byte) []byte { return nil })), "no acknowledgement"},
	{"replies of another sequence", each(unix.SYS_RECVFROM, alters(eachHeader(func(h []byte) {
		binary.NativeEndian.PutUint32(h[8:], binary.NativeEndian.Uint32(h[8:])-1000)
	}))), "no acknowledgement"},
	{"replies out of order", swapped, ""},
	{"late replies to the request before", late, ""},
	{"an interrupted dump", each(unix.SYS_RECVFROM, alters(eachHeader(func(h []byte) {
		binary.NativeEndian.PutUint16(h[6:], binary.NativeEndian.Uint16(h[6:])|unix.NLM_F_DUMP_INTR)
	}))), ""},
	{"no answer", each(unix.SYS_RECVFROM, fails(unix.EAGAIN)), "no acknowledgement"},
	{"a closed socket", each(unix.SYS_RECVFROM, fails(unix.EBADF)), "bad file descriptor"},
}

// each injects a fault into all calls with a system call number.
func each(call int, do func(*fault.Call) fault.Result) func() func(*fault.Call) fault.Result {
	return func() func(*fault.Call) fault.Result { return nth(call, 0, 1<<30, do) }
}

// swapped returns the pending answers in reverse order.
func swapped() func(*fault.Call) fault.Result {
	var waiting [][]byte
	return nth(unix.SYS_RECVFROM, 0, 1<<30, func(c *fault.Call) fault.Result {
		if len(waiting) == 0 {
			for {
				b, _, err := receiveNow(c.Socket())
				if err != nil {
					break
				}
				waiting = append(waiting, b)
			}
			slices.Reverse(waiting)
		}
		if len(waiting) == 0 {
			return fault.Result{Errno: unix.EAGAIN}
		}
		b := waiting[0]
		waiting = waiting[1:]
		return c.Return(b)
	})
}

// late returns each answer a second time, before the next answer.
func late() func(*fault.Call) fault.Result {
	var last []byte
	again := false
	return nth(unix.SYS_RECVFROM, 0, 1<<30, func(c *fault.Call) fault.Result {
		if again = !again && last != nil; again {
			return c.Return(last)
		}
		return alters(func(b []byte) []byte {
			last = slices.Clone(b)
			return b
		})(c)
	})
}

func receiveNow(fd int) ([]byte, unix.Sockaddr, error) {
	b := make([]byte, 64<<10)
	n, from, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
	return b[:max(n, 0)], from, err
}

// TestNetlinkFaults injects each fault during a change, a comparison, a rewrite, a renewal of the lease, and a start. The kernel keeps its old tables or
// gets the new ones, the error names the fault, and after the fault the tables equal the plan.
func TestNetlinkFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("TestRandomNetlinkFaults covers the same faults")
	}
	for _, c := range netlinkFaults {
		t.Run(c.name, func(t *testing.T) {
			f := newFaulty(t)
			f.change()
			f.calls.Decide(c.make())
			_, err := f.k.Sync(f.p)
			f.expect("a change", err, c.word)
			for range 2 { // the fault persists
				_, _ = f.k.Sync(f.p)
				_, _ = f.k.CheckRuleset()
			}
			f.whole("after a change")

			for i := range 2 {
				eventually(t, func() bool {
					_, err := f.k.CheckRuleset()
					return err == nil && f.k.others.joined
				})
				run(t, "nft", fmt.Sprintf("add table ip foreign-%d", i))
				heard(t, f.k)
				f.k.Doubt()
				f.change()
				f.calls.Decide(c.make())
				_, _ = f.k.Sync(f.p)
				f.calls.Decide(nil)
				f.sync()
			}
			f.whole("after a comparison")

			run(t, "nft", "flush chain ip kube-nftproxy postrouting")
			f.k.Doubt()
			f.change()
			f.calls.Decide(c.make())
			_, _ = f.k.Sync(f.p)
			f.whole("after a rewrite")

			f.calls.Decide(c.make())
			_ = f.k.Renew(f.p, 0)
			f.whole("after a renewal")

			again := open(t)
			f.calls.Decide(c.make())
			_, _ = again.Sync(f.p)
			f.calls.Decide(nil)
			if r, err := again.Sync(f.p); err != nil {
				t.Errorf("a start after the fault: %s, %v", r.Kind, err)
			}
			f.k = again // the planner reports to one kernel
			f.whole("after another start")
		})
	}
}

func (f *faulty) expect(when string, err error, word string) {
	f.Helper()
	if word == "" && err != nil || word != "" && (err == nil || !strings.Contains(err.Error(), word)) {
		f.Errorf("%s: error %v, want one with %q", when, err, word)
	}
	if err == nil {
		f.synced()
	}
}

// TestRandomNetlinkFaults changes Services while one call of ten has a random fault.
func TestRandomNetlinkFaults(t *testing.T) {
	const steps = 300
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r, ofCalls := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	f := newFaulty(t)
	failed := 0
	for range steps {
		f.change()
		sometimes := func(c *fault.Call) fault.Result {
			if ofCalls.IntN(10) == 0 {
				return netlinkFaults[ofCalls.IntN(len(netlinkFaults))].make()(c)
			}
			return fault.Result{}
		}
		f.calls.Decide(sometimes)
		if r.IntN(10) == 0 {
			f.k.Doubt()
		}
		if r.IntN(20) == 0 {
			_ = f.k.Renew(f.p, 0)
		}
		if r.IntN(20) == 0 {
			run(t, "nft", fmt.Sprintf("add table ip foreign-%d", f.step))
			f.k.Doubt()
		}
		if _, err := f.k.Sync(f.p); err != nil {
			failed++
			_, _ = f.k.CheckRuleset()
			continue
		}
		f.synced()
	}
	f.whole("after all steps")
	t.Logf("%d of %d syncs failed, %d packets", failed, steps, f.sent.Load())
	if failed < steps/20 {
		t.Errorf("only %d of %d syncs failed", failed, steps)
	}
}
