package loopback

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// patienceOfTests is the timeout for actions that usually take microseconds.
const patienceOfTests = 10 * time.Second

// bench is a server whose listeners and endpoints use ports that the kernel assigns. Tests call sync instead of Run.
type bench struct {
	*testing.T
	*Server
	context context.Context
	// used are the ports on which another process listens.
	used map[uint16]bool
	// at has the real address of each node port, backends the real address of each endpoint.
	at       map[uint16]string
	backends sync.Map
	ends     byte
	reports  []model.Problem
	// withdrawn are the problems that no longer exist.
	withdrawn []model.Problem
	counted   counts
}

// counts are the metrics.
type counts struct {
	listeners     [2]int
	failures      int
	open, limited atomic.Int64
	limitedByNode atomic.Int64
	unreachable   atomic.Int64
}

func (c *counts) LoopbackListeners(f inet.Family, n int) { c.listeners[f] = n }
func (c *counts) LoopbackNotListening(inet.Family)       { c.failures++ }
func (c *counts) LoopbackConnections(more int)           { c.open.Add(int64(more)) }
func (c *counts) LoopbackFailed(reason string) {
	switch reason {
	case LimitOfNamespace:
		c.limited.Add(1)
	case LimitOfNode:
		c.limitedByNode.Add(1)
	default:
		c.unreachable.Add(1)
	}
}

func newBench(t *testing.T) *bench {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	b := &bench{T: t, context: ctx, used: map[uint16]bool{}, at: map[uint16]string{}}
	b.Server = New(Config{
		NodeName: "node-1", Families: inet.Families[:], Metrics: &b.counted, Files: descriptors.New(),
		Report:   func(p model.Problem) { b.reports = append(b.reports, p) },
		Withdraw: func(p model.Problem) { b.withdrawn = append(b.withdrawn, p) },
		Listen: func(at netip.AddrPort) (net.Listener, error) {
			if b.used[at.Port()] {
				return nil, syscall.EADDRINUSE
			}
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err == nil {
				b.at[at.Port()] = l.Addr().String()
			}
			return l, err
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			at, _ := b.backends.Load(to)
			return d.DialContext(ctx, "tcp4", at.(string))
		},
	})
	t.Cleanup(b.end)
	b.Serve(true)
	return b
}

// backend starts an endpoint. It answers each line with its name and the line, resets the connection after the line
// "reset", and sends goodbye at the end of the stream.
func (b *bench) backend(name string) netip.AddrPort {
	b.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	lab.Must(b, err)
	b.Cleanup(func() { l.Close() })
	b.ends++
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, b.ends}), 80)
	b.backends.Store(at, l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if lines.Text() == "reset" {
						abort(c)
						return
					}
					fmt.Fprintf(c, "%s %s\n", name, lines.Text())
				}
				fmt.Fprintf(c, "%s goodbye\n", name)
			}()
		}
	}()
	return at
}

// set sets a Service with a node port and endpoints.
func (b *bench) set(name string, number uint16, ends ...netip.AddrPort) {
	b.Helper()
	b.setIn("default", name, number, ends...)
}

func (b *bench) setIn(namespace, name string, number uint16, ends ...netip.AddrPort) {
	b.Helper()
	s := nodePort(name, number, ends)
	s.Name.Namespace, s.Ports[0].Name.Namespace = namespace, namespace
	b.Service(s.Name, s)
	b.sync(b.context)
}

func (b *bench) delete(name string) {
	b.Helper()
	b.deleteIn("default", name)
}

func (b *bench) deleteIn(namespace, name string) {
	b.Helper()
	b.Service(types.NamespacedName{Namespace: namespace, Name: name}, nil)
	b.sync(b.context)
}

// client is a connection to a node port.
type client struct {
	*testing.T
	*net.TCPConn
	lines *bufio.Reader
}

func (b *bench) connect(number uint16) *client {
	b.Helper()
	c, err := net.Dial("tcp4", b.at[number])
	lab.Must(b, err)
	b.Cleanup(func() { c.Close() })
	lab.Must(b, c.SetDeadline(time.Now().Add(patienceOfTests)))
	return &client{b.T, c.(*net.TCPConn), bufio.NewReader(c)}
}

// ask sends a line and returns the answer.
func (c *client) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

func (c *client) want(answer string) {
	c.Helper()
	if got, err := c.ask("hello"); err != nil || got != answer+" hello\n" {
		c.Errorf("answer %q, %v; want an answer of %s", got, err, answer)
	}
}

// wantReset waits for the end of the connection.
func (c *client) wantReset() {
	c.Helper()
	if _, err := c.lines.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) {
		c.Errorf("the connection ended with %v, want a reset", err)
	}
}

// wantAborted connects to a node port that resets the connection.
func (b *bench) wantAborted(number uint16) {
	b.Helper()
	c, err := net.Dial("tcp4", b.at[number])
	if err == nil {
		defer c.Close()
		if err = c.SetDeadline(time.Now().Add(patienceOfTests)); err != nil {
			b.Fatal(err)
		}
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		b.Errorf("connect: %v, want a reset", err)
	}
}

// wantRefused connects to the address that a node port had.
func (b *bench) wantRefused(number uint16) {
	b.Helper()
	if c, err := net.Dial("tcp4", b.at[number]); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			c.Close()
		}
		b.Errorf("connect: %v, want refused", err)
	}
}

// TestConnections keeps connections open during changes of their Service and of another Service.
func TestConnections(t *testing.T) {
	b := newBench(t)
	one, two := b.backend("one"), b.backend("two")
	b.set("web", 30080, one)
	early := b.connect(30080)
	early.want("one")

	b.set("other", 30081, two)
	b.delete("other")
	b.wantRefused(30081)
	early.want("one")

	b.set("web", 30080, two)
	early.want("one") // an established connection keeps its endpoint
	late := b.connect(30080)
	late.want("two")

	b.set("web", 30080)
	early.wantReset()
	late.wantReset()
	b.wantRefused(30080)

	b.set("web", 30080, one)
	b.connect(30080).want("one")
	b.delete("web")
	b.wantRefused(30080)
	if n := b.counted.listeners; n != [2]int{} || b.State().Listeners != 0 {
		t.Errorf("%v listeners are left", n)
	}
}

// TestClosedStreams: the relay passes on the end of a stream, and a reset. If it cannot connect to the endpoint, it
// resets the connection.
func TestClosedStreams(t *testing.T) {
	b := newBench(t)
	b.set("web", 30080, b.backend("one"))
	c := b.connect(30080)
	c.want("one")
	lab.Must(t, c.CloseWrite())
	if rest, err := io.ReadAll(c.lines); err != nil || string(rest) != "one goodbye\n" {
		t.Errorf("after the end of the client's stream: %q, %v", rest, err)
	}
	c = b.connect(30080)
	if _, err := c.ask("reset"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset by the endpoint: %v", err)
	}
	dead := netip.MustParseAddrPort("10.0.0.9:80")
	b.backends.Store(dead, "127.0.0.1:1")
	b.set("web", 30080, dead)
	b.wantAborted(30080)
	if n := b.counted.unreachable.Load(); n != 1 {
		t.Errorf("%d connections to an endpoint failed, want 1", n)
	}
}

// TestNoNamespaceTakesAllConnections: connections above the share of a namespace are reset and counted, and earlier
// connections stay. Node ports of other namespaces work.
func TestNoNamespaceTakesAllConnections(t *testing.T) {
	b := newBench(t)
	b.Files = descriptors.Of(6_000) // 3,000 are shared; 20 belong to each namespace, and one namespace gets 114
	const ports, share = 4, (114 - 4) / connectionFiles
	one := b.backend("one")
	for i := range uint16(ports) {
		b.setIn("evil", fmt.Sprint("evil-", i), 30080+i, one)
	}
	var held []*client
	for i := range uint16(share) {
		c := b.connect(30080 + i%ports)
		c.want("one")
		held = append(held, c)
	}
	for i := range uint16(ports) {
		b.wantAborted(30080 + i)
	}
	if n := b.counted.limited.Load(); n != ports {
		t.Errorf("%d connections above the share, want %d", n, ports)
	}
	b.setIn("bank", "web", 30090, one)
	for range 3 {
		c := b.connect(30090)
		c.want("one")
		held = append(held, c)
	}
	held[0].want("one")
	lab.Must(t, held[0].Close())
	for deadline := time.Now().Add(patienceOfTests); b.counted.open.Load() != share+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want %d", b.counted.open.Load(), share+2)
		}
	}
	b.connect(30080).want("one")
}

// TestNoNamespaceTakesAllListeners: a Service whose node port gets no descriptor is reported, with the limit, and gets
// one when there is room. Connections above the limit of the node are counted apart.
func TestNoNamespaceTakesAllListeners(t *testing.T) {
	b := newBench(t)
	b.Files = descriptors.Of(1024) // 512 are shared; 8 belong to each namespace, and one namespace gets 24
	const share = 24
	one := b.backend("one")
	for i := range uint16(share + 1) {
		b.setIn("evil", fmt.Sprint("evil-", i), 30080+i, one)
	}
	late := model.Key{Port: 30080 + share, Protocol: inet.TCP}
	limited := func() *descriptors.Error {
		_, err := b.At(late)
		limit, _ := errors.AsType[*descriptors.Error](err)
		return limit
	}
	if err := limited(); err == nil || err.Lacks != room.OfNamespace {
		t.Errorf("a listener above the share: %v", err)
	}
	b.retry()
	b.sync(b.context)
	if len(b.reports) != 1 || !strings.Contains(b.reports[0].Reason, "namespace evil has used its share") || !strings.Contains(b.reports[0].Fix, "open files") {
		t.Errorf("reports of a listener above the share: %+v", b.reports)
	}
	b.setIn("bank", "web", 30190, one)
	b.connect(30190).want("one")
	b.Service(types.NamespacedName{Namespace: "evil", Name: "evil-0"}, nil)
	b.retry()
	b.sync(b.context)
	if err := limited(); err != nil {
		t.Errorf("a listener within the share: %v", err)
	}
	lab.Same(t, b.reports, b.withdrawn, "withdrawn problems")
	// A Service of another namespace gets the node port, and its namespace gives a descriptor.
	b.setIn("bank", "evil-1", 30081, one)
	b.deleteIn("evil", "evil-1")
	if b.Files.Take("evil", 1) != room.None || b.Files.Take("evil", 1) != room.OfNamespace {
		t.Error("a namespace pays for the node port of another one")
	}
	for i := range 16 {
		b.Files.Take(fmt.Sprint("other-", i), share)
	}
	b.setIn("shop", "web", 30191, one)
	b.Files.Take("shop", 4)
	b.wantAborted(30191)
	if n := b.counted.limitedByNode.Load(); n != 1 {
		t.Errorf("%d connections above the limit of the node, want 1", n)
	}
}

// TestOlderServicesGetDescriptorsFirst: at a start, all Services request descriptors at once.
func TestOlderServicesGetDescriptorsFirst(t *testing.T) {
	b := newBench(t)
	b.Files = descriptors.Of(1024)
	const services, share = 60, 24
	one := b.backend("one")
	for i := range services {
		s := nodePort(fmt.Sprint("s", i), uint16(30080+i), []netip.AddrPort{one})
		s.Created = time.Unix(int64(services-i), 0)
		b.Service(s.Name, s)
	}
	b.sync(b.context)
	for i := range services {
		if _, err := b.At(model.Key{Port: uint16(30080 + i), Protocol: inet.TCP}); (err == nil) != (i >= services-share) {
			t.Errorf("the Service %d by age: %v", services-i, err)
		}
	}
}

// TestPortInUse: if another process uses a node port, all other node ports work. The program reports the Service
// once, and retries.
func TestPortInUse(t *testing.T) {
	b := newBench(t)
	one := b.backend("one")
	b.used[30080], b.used[30081] = true, true
	web := nodePort("web", 30080, []netip.AddrPort{one})
	web.Ports = append(web.Ports, nodePort("web", 30081, []netip.AddrPort{one}).Ports...)
	b.Service(web.Name, web)
	if failing, _ := b.sync(b.context); !failing || len(b.reports) > 0 {
		t.Errorf("reports after the first attempt: %v", b.reports)
	}
	b.set("quiet", 30082, one)
	b.connect(30082).want("one")
	again := func() bool {
		b.retry()
		failing, _ := b.sync(b.context)
		return failing
	}
	for range 3 {
		again()
	}
	if len(b.reports) != 1 || b.reports[0].Name != web.Name || b.counted.failures != 8 {
		t.Errorf("%d failures, reports %v; want 8 and one of web", b.counted.failures, b.reports)
	}
	key := model.Key{Port: 30081, Protocol: inet.TCP}
	if at, err := b.At(key); at.String() != "127.0.0.1:30081" || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("At: %v, %v", at, err)
	}
	delete(b.used, 30080)
	if !again() {
		t.Error("no retry is due, although one port is in use")
	}
	b.connect(30080).want("one")
	delete(b.used, 30081)
	if failing := again(); failing || b.State().Failures > 0 {
		t.Error("failures of ports that are not in use")
	}
	if _, err := b.At(key); err != nil {
		t.Error(err)
	}
	b.connect(30081).want("one")
	if len(b.reports) != 1 {
		t.Errorf("reports: %v", b.reports)
	}
}

// TestStandby: an instance that stands by accepts no new connections, and keeps its established ones.
func TestStandby(t *testing.T) {
	b := newBench(t)
	b.set("web", 30080, b.backend("one"))
	c := b.connect(30080)
	c.want("one")
	b.Serve(false)
	b.sync(b.context)
	b.wantRefused(30080)
	c.want("one")
	b.set("web", 30080, b.backend("two"))
	b.wantRefused(30080)
	b.Serve(true)
	b.sync(b.context)
	c.want("one")
	b.connect(30080).want("two")
}

// TestRun: Run opens ports. When its context ends, it closes them and resets all connections.
func TestRun(t *testing.T) {
	b := newBench(t)
	s := nodePort("web", 30080, []netip.AddrPort{b.backend("one")})
	b.Service(s.Name, s)
	ctx, cancel := context.WithCancel(t.Context())
	opened, ended := make(chan struct{}), make(chan struct{})
	inner := b.Listen
	b.Listen = func(at netip.AddrPort) (net.Listener, error) {
		defer close(opened)
		return inner(at)
	}
	go func() { defer close(ended); b.Server.Run(ctx) }()
	<-opened
	c := b.connect(30080)
	c.want("one")
	cancel()
	<-ended
	c.wantReset()
	b.wantRefused(30080)
}

// TestOtherServicesCostNothing: a change of a Service without node ports does not wake Run, and allocates nothing.
func TestOtherServicesCostNothing(t *testing.T) {
	b := newBench(t)
	b.set("web", 30080, b.backend("one"))
	woken := false
	end := func() {}
	follow := func(within time.Duration) {
		woken = false
		var ctx context.Context
		ctx, end = context.WithTimeout(b.context, within)
		defer end()
		b.runner.Run(ctx)
	}
	b.runner.Work = func(context.Context) (beside.Pause, error) {
		woken = true
		end()
		return beside.UntilWake, nil
	}
	if follow(patienceOfTests); !woken {
		t.Error("the change of a Service with a node port does not wake Run")
	}
	s := nodePort("plain", 30081, three)
	s.Ports[0].Frontends = s.Ports[0].Frontends[:1]
	if n := lab.Allocations(func() { b.Service(s.Name, s) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if follow(50 * time.Millisecond); woken || len(b.dirty) > 0 {
		t.Error("the change of a Service without node ports wakes Run")
	}
}

// BenchmarkOneNodePort changes all Services of many namespaces that claim the same node port, one after the other.
func BenchmarkOneNodePort(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := New(Config{Families: inet.Families[:]})
			services := make([]*model.Service, n)
			for i := range services {
				services[i] = nodePort(fmt.Sprint("web-", i), 30080, nil)
				services[i].Name.Namespace = fmt.Sprint("tenant-", i%64)
				services[i].Ports[0].Name.NamespacedName = services[i].Name
				s.Service(services[i].Name, services[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, service := range services {
					s.Service(service.Name, service)
				}
			}
		})
	}
}
