package loopback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// connectionFiles is the number of file descriptors of a connection: two sockets and two pipes. A listener has one.
const connectionFiles = 6

const (
	// retryEvery is the time between two attempts to listen on failed ports.
	retryEvery = time.Second
	// patience is the number of failures after which a port is reported. The first failure is normal during a
	// restart: the earlier process may not have closed the port yet.
	patience = 2
)

// Metrics counts listeners and connections.
type Metrics interface {
	// LoopbackListeners sets the number of listeners of a family. LoopbackNotListening counts a failed attempt to
	// listen.
	LoopbackListeners(f inet.Family, n int)
	LoopbackNotListening(f inet.Family)
	// LoopbackConnections adds to the number of open connections. LoopbackFailed counts a connection that was reset, by
	// reason: [LimitOfNamespace], [LimitOfNode] or [Unreachable].
	LoopbackConnections(more int)
	LoopbackFailed(reason string)
}

// Config holds the settings and parts of a [Server].
type Config struct {
	NodeName string
	// Families are the families with node ports on loopback; empty if node ports are not served on loopback.
	Families []inet.Family
	// Listen and Dial default to the functions of package net, and Now to time.Now. Tests replace them.
	Listen func(netip.AddrPort) (net.Listener, error)
	Dial   func(context.Context, netip.AddrPort) (net.Conn, error)
	Now    func() time.Time
	// Report receives one problem for each Service with a node port on which the program cannot listen, and Withdraw
	// the same problem when it no longer exists.
	Report, Withdraw func(model.Problem)
	Metrics          Metrics
	// Files is the budget of file descriptors, which listeners and connections take.
	Files *descriptors.Budget
	// Refusals, if not nil, refuses UDP and SCTP node ports on loopback. Run closes it.
	Refusals *Refusals
}

// Server is a listener that serves the node ports of Services on loopback. Any goroutine may call its methods, but only
// one goroutine may call Run. Only Run and Refused block.
type Server struct {
	Config
	connections atomic.Int64
	runner      *beside.Runner
	// Only Run uses the next three fields. ports are the node ports with endpoints. refusing is true while this process
	// owns the tables of the refusals. retryAt is the time of the next retry; zero if there is nothing to retry.
	ports    map[model.Key]*port
	refusing bool
	retryAt  time.Time
	// failures are the node ports on which the program cannot listen.
	failures descriptors.Failures[model.Key]

	mu      sync.Mutex
	claims  claims
	serving bool
	// dirty are the node ports to process: changed node ports, and failed node ports that are due for a retry.
	dirty     map[model.Key]struct{}
	listeners [2]int
	// lost is true after a failed reading of the refusals: another program may have deleted the tables.
	lost bool
}

// New returns a server. It listens only after [Server.Serve], and while [Server.Run] runs.
func New(c Config) *Server {
	if c.Listen == nil {
		c.Listen = listen
	}
	if c.Dial == nil {
		c.Dial = dial
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Server{
		Config: c, ports: map[model.Key]*port{},
		claims: claims{map[types.NamespacedName][]*claim{}, map[model.Key][]*claim{}}, dirty: map[model.Key]struct{}{},
		failures: descriptors.Failures[model.Key]{Report: c.Report, Withdraw: c.Withdraw, Patience: patience},
	}
	s.runner = beside.NewRunner(beside.Runner{
		Work: s.work, First: beside.UntilWake, Failed: "Cannot refuse UDP and SCTP node ports on loopback, will retry",
	})
	return s
}

func listen(at netip.AddrPort) (net.Listener, error) {
	l, err := net.Listen([...]string{"tcp4", "tcp6"}[inet.FamilyOf(at.Addr())], at.String())
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		err = failure.Err // without the address, which each message names separately
	}
	return l, err
}

func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to.String())
}

// Listener returns the functions that the loop calls.
func (s *Server) Listener() beside.Listener {
	if len(s.Families) == 0 {
		return beside.Listener{}
	}
	return beside.Listener{Of: beside.NodePorts, Service: s.Service, Serve: s.Serve}
}

// Service sets a Service; nil for a deleted one.
func (s *Server) Service(name types.NamespacedName, service *model.Service) {
	list := claimsOf(service, s.Families)
	s.mu.Lock()
	changed := s.claims.set(name, list)
	for _, k := range changed {
		s.dirty[k] = struct{}{}
	}
	s.mu.Unlock()
	if len(changed) > 0 {
		s.runner.Wake()
	}
}

// Serve starts or stops listening. After a stop, existing connections stay, and another instance of the program
// accepts new ones.
func (s *Server) Serve(serving bool) {
	s.mu.Lock()
	changed := s.serving != serving
	if s.serving = serving; changed {
		for k := range s.claims.byKey {
			s.dirty[k] = struct{}{}
		}
	}
	s.mu.Unlock()
	if changed {
		s.runner.Wake()
	}
}

// Run opens and closes ports until the context ends. Then it closes all listeners and connections, and deletes the
// refusals of this process.
func (s *Server) Run(ctx context.Context) {
	defer s.end()
	s.runner.Run(ctx)
}

// work processes the changes. It returns the pause before the next retry, if the program cannot listen on a port or
// write the refusals.
func (s *Server) work(ctx context.Context) (beside.Pause, error) {
	if !s.retryAt.IsZero() && !time.Now().Before(s.retryAt) {
		s.retry()
	}
	failing, err := s.sync(ctx)
	if s.retryAt = (time.Time{}); !failing && err == nil {
		return beside.UntilWake, nil
	}
	s.retryAt = time.Now().Add(retryEvery)
	return beside.Pause{Most: retryEvery}, err
}

func (s *Server) end() {
	if s.Refusals != nil {
		if err := s.Refusals.Close(s.refusing); err != nil {
			klog.ErrorS(err, "Cannot delete the table of node ports on loopback")
		}
	}
	for k := range s.ports {
		s.remove(k)
	}
}

// retry marks failed ports for another attempt.
func (s *Server) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.failures.Due(func(model.Key) bool { return true }) {
		s.dirty[k] = struct{}{}
	}
}

// sync processes the changes. It returns true if the program cannot listen on a port, and the error of writing the
// refusals.
func (s *Server) sync(ctx context.Context) (failing bool, err error) {
	s.mu.Lock()
	serving, lost := s.serving, s.lost
	s.lost = false
	wanted := make(map[model.Key]*claim, len(s.dirty))
	for k := range s.dirty {
		wanted[k] = s.claims.winner(k)
	}
	clear(s.dirty)
	s.mu.Unlock()
	for _, k := range byAge(wanted) {
		c := wanted[k]
		if k.Protocol != inet.TCP {
			s.refuse(k, c != nil)
			continue
		}
		if c == nil || len(c.endpoints) == 0 {
			s.remove(k)
			continue
		}
		p := s.ports[k]
		if p == nil {
			p = s.add(ctx, k)
		}
		p.set(c)
		if p.listener != nil && p.owner != c.name.Namespace {
			s.stop(k, p) // a Service of another namespace has the node port now, and needs its own descriptor
		}
		switch {
		case !serving:
			s.stop(k, p)
		case p.listener == nil:
			s.open(k, p, c)
		}
	}
	err = s.commitRefusals(serving, lost)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.Families {
		s.Metrics.LoopbackListeners(f, s.listeners[f])
	}
	return s.failures.Len() > 0, err
}

// byAge returns the node ports in the order of their Services' age, so that older Services get descriptors first. Node
// ports without a Service precede them, because they give descriptors back.
func byAge(wanted map[model.Key]*claim) []model.Key {
	return slices.SortedFunc(maps.Keys(wanted), func(a, b model.Key) int {
		switch c, d := wanted[a], wanted[b]; {
		case c == nil && d == nil:
			return 0
		case c == nil:
			return -1
		case d == nil:
			return 1
		default:
			return c.compare(d)
		}
	})
}

func (s *Server) refuse(k model.Key, refused bool) {
	if s.Refusals != nil {
		s.Refusals.Set(k, refused)
	}
}

// commitRefusals writes the refusals if this process serves. Otherwise the tables belong to another instance, which
// uses the same name.
func (s *Server) commitRefusals(serving, lost bool) error {
	if s.Refusals == nil {
		return nil
	}
	if lost || serving && !s.refusing {
		s.Refusals.Reset()
	}
	if s.refusing = serving; !serving {
		return nil
	}
	err := s.Refusals.Commit()
	if len(s.Families) == 0 {
		return nil // without families, the only purpose was to delete the tables of an earlier process
	}
	return err
}

// Refused returns the number of refused packets to UDP and SCTP node ports on loopback, by protocol. It waits for the
// kernel. After an error, Run rewrites the tables.
func (s *Server) Refused(f inet.Family) (map[inet.Protocol]uint64, error) {
	n, err := s.Refusals.Packets(f)
	if err != nil {
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
		s.runner.Wake()
	}
	return n, err
}

func (s *Server) add(ctx context.Context, k model.Key) *port {
	p := &port{server: s, at: netip.AddrPortFrom(inet.Localhost[k.Family], k.Port)}
	p.context, p.cut = context.WithCancel(ctx)
	s.ports[k] = p
	return p
}

// remove closes a port without a Service with endpoints, and resets its connections, as kube-proxy does.
func (s *Server) remove(k model.Key) {
	if p := s.ports[k]; p != nil {
		s.stop(k, p)
		p.cut()
		delete(s.ports, k)
	}
}

func (s *Server) stop(k model.Key, p *port) {
	s.mu.Lock()
	if p.listener != nil {
		s.listeners[k.Family]--
	}
	s.mu.Unlock()
	p.close()
	s.failures.Forget(k)
}

// open opens the listener of a node port, with a descriptor of its Service's namespace.
func (s *Server) open(k model.Key, p *port, c *claim) {
	namespace := c.name.Namespace
	l, err := s.Files.Listen(namespace, func() (net.Listener, error) { return s.Listen(p.at) })
	if err != nil {
		s.Metrics.LoopbackNotListening(k.Family)
		s.failures.Note(k, c.name.NamespacedName, err, func() model.Problem { return s.problem(p.at, c, err) })
		return
	}
	s.failures.Forget(k)
	p.listener, p.owner = l, namespace
	s.mu.Lock()
	s.listeners[k.Family]++
	s.mu.Unlock()
	klog.V(4).InfoS("Listening on loopback for a node port", "address", p.at, "service", c.name)
	go p.accept(l)
}

// problem returns the problem of a Service with a node port on which the program cannot listen.
func (s *Server) problem(at netip.AddrPort, c *claim, err error) model.Problem {
	p := model.NodePortProblem(c.name.NamespacedName)
	p.Event, p.Action = "NodePortNotOnLoopback", "Listen"
	p.Reason = fmt.Sprintf("on node %s the program cannot listen on %s: %v", s.NodeName, at, err)
	p.Impact = "connections to this address are refused, or reach another process that listens there; the port works " +
		"at all other addresses"
	p.Fix = fix(err, at.Port())
	return p
}

// fix returns the remedy for an error of listening on a port.
func fix(err error, port uint16) string {
	if limit, ok := errors.AsType[*descriptors.Error](err); ok {
		return limit.Fix()
	}
	return fmt.Sprintf("stop the other process (to find it, run `ss -ltnp sport = :%d` on the node), or choose "+
		"another node port", port)
}

// enter takes the descriptors of a connection for a namespace, unless it lacks them. leave gives them back.
func (s *Server) enter(namespace string) room.Shortage {
	lacks := s.Files.Take(namespace, connectionFiles)
	if lacks == room.None {
		s.connections.Add(1)
		s.Metrics.LoopbackConnections(1)
	}
	return lacks
}

func (s *Server) leave(namespace string) {
	s.Files.Give(namespace, connectionFiles)
	s.connections.Add(-1)
	s.Metrics.LoopbackConnections(-1)
}

// ErrProtocol is the error of a node port of a protocol other than TCP.
var ErrProtocol = errors.New("only TCP node ports are served on loopback")

// At returns the loopback address of a node port; the zero AddrPort for other frontends, and for families that are
// not served on loopback. It returns the last error if the program cannot listen, and [ErrProtocol] for a protocol
// other than TCP.
func (s *Server) At(k model.Key) (netip.AddrPort, error) {
	switch {
	case k.Addr.IsValid() || !slices.Contains(s.Families, k.Family):
		return netip.AddrPort{}, nil
	case k.Protocol != inet.TCP:
		return netip.AddrPort{}, ErrProtocol
	}
	return netip.AddrPortFrom(inet.Localhost[k.Family], k.Port), s.failures.Of(k)
}

// State is the state of a server.
type State struct {
	// Listeners is the number of open ports of both families, Failures the number of ports on which the program
	// cannot listen, Connections the number of open connections.
	Listeners, Failures, Connections int
}

// State returns the current state.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{s.listeners[0] + s.listeners[1], s.failures.Len(), int(s.connections.Load())}
}
