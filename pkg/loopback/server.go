package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Limits of all node ports together, and of one. A connection takes six file descriptors: two sockets and two pipes.
const (
	mostListeners       = 8_192
	mostConnections     = 2_048
	mostPortConnections = 512
	connectionFiles     = 6
)

const (
	// retryEvery is the time between two attempts to listen on ports that are in use, mostRetries the number of ports of one attempt.
	retryEvery  = time.Second
	mostRetries = 100
	// patience is the number of failures after which a port is reported: an earlier process of this program may just give it up.
	patience = 2
)

// Metrics counts listeners and connections.
type Metrics interface {
	// LoopbackListeners sets the number of listeners of a family. LoopbackNotListening counts an attempt to listen that failed.
	LoopbackListeners(f inet.Family, n int)
	LoopbackNotListening(f inet.Family)
	// LoopbackConnections adds to the number of open connections. LoopbackFailed counts a connection that reached no endpoint.
	LoopbackConnections(more int)
	LoopbackFailed(reason string)
}

// Config is what a [Server] depends on.
type Config struct {
	NodeName string
	// Families are those whose node ports are served on loopback, none if node ports are not served there.
	Families []inet.Family
	// Listen and Dial are those of the package net, and Now is time.Now, unless a test replaces them.
	Listen func(netip.AddrPort) (net.Listener, error)
	Dial   func(context.Context, netip.AddrPort) (net.Conn, error)
	Now    func() time.Time
	// Report receives one problem of each Service with node ports on which the program cannot listen.
	Report  func(model.Problem)
	Metrics Metrics
	// Refusals, unless nil, has the kernel refuse UDP and SCTP node ports on loopback. Run closes it.
	Refusals *Refusals
}

// limits are numbers of listeners and connections.
type limits struct{ listeners, connections, portConnections int }

// limitsOf returns the limits of a process that may open a number of files: it keeps half of them for all else.
func limitsOf(files uint64) limits {
	files = min(files, 1<<20)
	return limits{
		listeners:       min(mostListeners, int(files/4)),
		connections:     min(mostConnections, int(files/4/connectionFiles)),
		portConnections: min(mostPortConnections, int(files/4/connectionFiles)),
	}
}

// Server serves the node ports of Services on loopback. Any goroutine may call its methods, none of which waits, except Run.
type Server struct {
	Config
	limits      limits
	connections atomic.Int64
	// changed has a value when Run has something to do.
	changed chan struct{}
	// ports are those with endpoints. They belong to Run.
	ports map[model.Key]*port
	// refusing says that the refusals are this process's, notRefusing that the last commit of them failed. Both belong to Run.
	refusing, notRefusing bool

	mu      sync.Mutex
	claims  claims
	serving bool
	// dirty are the node ports that have changed, or are due for another attempt.
	dirty map[model.Key]struct{}
	// failures are the node ports on which the program cannot listen.
	failures map[model.Key]*failure
	// failing are the Services with failures.
	failing   map[types.NamespacedName]*failing
	listeners [2]int
	// lost says that the tables of the refusals are not as they were written.
	lost bool
}

// failure is an error of listening on a node port of a Service, and the number of attempts.
type failure struct {
	service types.NamespacedName
	err     error
	times   int
}

// failing is the number of failures of a Service, and whether the Service was reported.
type failing struct {
	ports    int
	reported bool
}

// New returns a server that listens nowhere before [Server.Serve].
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
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files) // it does not fail for a known resource
	return &Server{
		Config: c, limits: limitsOf(files.Cur), changed: make(chan struct{}, 1), ports: map[model.Key]*port{},
		claims: claims{map[types.NamespacedName][]*claim{}, map[model.Key][]*claim{}}, dirty: map[model.Key]struct{}{},
		failures: map[model.Key]*failure{}, failing: map[types.NamespacedName]*failing{},
	}
}

func listen(at netip.AddrPort) (net.Listener, error) {
	l, err := net.Listen([...]string{"tcp4", "tcp6"}[inet.FamilyOf(at.Addr())], at.String())
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		err = failure.Err // without the address, which all messages name
	}
	return l, err
}

func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to.String())
}

// Service sets a Service. service is nil if it was deleted. A Service without node ports costs a lookup.
func (s *Server) Service(name types.NamespacedName, service *model.Service) {
	if len(s.Families) == 0 {
		return
	}
	list := claimsOf(service, s.Families)
	s.mu.Lock()
	changed := s.claims.set(name, list)
	for _, k := range changed {
		s.dirty[k] = struct{}{}
	}
	s.mu.Unlock()
	if len(changed) > 0 {
		s.wake()
	}
}

// Serve starts or stops listening. Connections stay: another instance of the program serves new ones.
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
		s.wake()
	}
}

func (s *Server) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run opens and closes ports until the context ends. Then it closes all listeners and connections.
func (s *Server) Run(ctx context.Context) {
	defer s.end()
	retry := time.NewTimer(retryEvery)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-retry.C:
			s.retry()
		}
		if s.sync(ctx) {
			retry.Reset(retryEvery)
		}
	}
}

func (s *Server) end() {
	if s.Refusals != nil {
		if err := s.Refusals.Close(s.refusing); err != nil {
			klog.ErrorS(err, "Cannot delete the table of node ports on loopback")
		}
	}
	for _, p := range s.ports {
		p.close()
		p.cut()
	}
}

// retry marks some ports on which the program cannot listen. The order of a map differs each time.
func (s *Server) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k := range s.failures {
		if n++; n > mostRetries {
			return
		}
		s.dirty[k] = struct{}{}
	}
}

// sync takes up what has changed. It reports whether there are ports on which the program cannot listen.
func (s *Server) sync(ctx context.Context) (failing bool) {
	s.mu.Lock()
	serving, lost := s.serving, s.lost
	s.lost = false
	wanted := make(map[model.Key]*claim, len(s.dirty))
	for k := range s.dirty {
		wanted[k] = s.claims.winner(k)
	}
	clear(s.dirty)
	s.mu.Unlock()
	for k, c := range wanted {
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
		switch {
		case !serving:
			s.stop(k, p)
		case p.listener == nil:
			s.open(k, p, c)
		}
	}
	s.commitRefusals(serving, lost)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.Families {
		s.Metrics.LoopbackListeners(f, s.listeners[f])
	}
	return len(s.failures) > 0 || s.notRefusing
}

func (s *Server) refuse(k model.Key, refused bool) {
	if s.Refusals != nil {
		s.Refusals.Set(k, refused)
	}
}

// commitRefusals writes the refusals if this process serves. Another instance has tables of the same name.
func (s *Server) commitRefusals(serving, lost bool) {
	if s.Refusals == nil {
		return
	}
	if lost || serving && !s.refusing {
		s.Refusals.Reset()
	}
	if s.refusing = serving; !serving {
		return
	}
	err := s.Refusals.Commit()
	if len(s.Families) == 0 {
		return // at most, the table of an earlier process is left
	}
	if err != nil && !s.notRefusing {
		klog.ErrorS(err, "UDP and SCTP node ports on loopback are not refused by a rule; retrying every second")
	}
	s.notRefusing = err != nil
}

// Refused returns how many packets to UDP and SCTP node ports on loopback the kernel has refused, by protocol. After an error, the tables are
// written again.
func (s *Server) Refused(f inet.Family) (map[inet.Protocol]uint64, error) {
	n, err := s.Refusals.Packets(f)
	if err != nil {
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
		s.wake()
	}
	return n, err
}

func (s *Server) add(ctx context.Context, k model.Key) *port {
	p := &port{server: s, at: netip.AddrPortFrom(inet.Localhost[k.Family], k.Port)}
	p.context, p.cut = context.WithCancel(ctx)
	s.ports[k] = p
	return p
}

// remove closes a port that has no Service with endpoints, and its connections: their endpoints have gone, as in kube-proxy.
func (s *Server) remove(k model.Key) {
	if p := s.ports[k]; p != nil {
		s.stop(k, p)
		p.cut()
		delete(s.ports, k)
	}
}

func (s *Server) stop(k model.Key, p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.listener != nil {
		s.listeners[k.Family]--
	}
	p.close()
	s.forget(k)
}

// forget drops a failure, and with the last one of a Service that the Service was reported.
func (s *Server) forget(k model.Key) {
	f := s.failures[k]
	if f == nil {
		return
	}
	delete(s.failures, k)
	if of := s.failing[f.service]; of.ports > 1 {
		of.ports--
	} else {
		delete(s.failing, f.service)
	}
}

var errTooMany = errors.New("the limit of listeners on loopback is reached")

func (s *Server) open(k model.Key, p *port, c *claim) {
	err := errTooMany
	if s.listeners[inet.IPv4]+s.listeners[inet.IPv6] < s.limits.listeners { // only Run writes them
		p.listener, err = s.Listen(p.at)
	}
	if err != nil {
		p.listener = nil
		s.Metrics.LoopbackNotListening(k.Family)
		s.note(k, p.at, c.name.NamespacedName, err)
		return
	}
	s.mu.Lock()
	s.listeners[k.Family]++
	s.forget(k)
	s.mu.Unlock()
	klog.V(4).InfoS("Listening on loopback for a node port", "address", p.at, "service", c.name)
	go p.accept(p.listener)
}

// note notes a failure, and reports the Service once.
func (s *Server) note(k model.Key, at netip.AddrPort, service types.NamespacedName, err error) {
	s.mu.Lock()
	f := s.failures[k]
	if f == nil || f.service != service {
		s.forget(k)
		f = &failure{service: service}
		s.failures[k] = f
		if s.failing[service] == nil {
			s.failing[service] = &failing{}
		}
		s.failing[service].ports++
	}
	f.err = err
	f.times++
	of := s.failing[service]
	report := f.times >= patience && !of.reported
	of.reported = of.reported || report
	s.mu.Unlock()
	if !report {
		return
	}
	s.Report(model.Problem{
		Kind: "Service", Name: service, Field: "spec.ports[].nodePort", Event: "NodePortNotOnLoopback", Action: "Listen",
		Reason: fmt.Sprintf("on node %s the program cannot listen on %s: %v", s.NodeName, at, err),
		Impact: "connections to this address reach the process that listens there, or are refused; the node port works at all other addresses",
		Fix:    fmt.Sprintf("stop that process (to find it, run `ss -ltnp sport = :%d` on the node), or choose another node port", at.Port()),
	})
}

func (s *Server) enter() bool {
	if s.connections.Add(1) > int64(s.limits.connections) {
		s.connections.Add(-1)
		return false
	}
	s.Metrics.LoopbackConnections(1)
	return true
}

func (s *Server) leave() {
	s.connections.Add(-1)
	s.Metrics.LoopbackConnections(-1)
}

// ErrProtocol is the error of a node port that is not for TCP.
var ErrProtocol = errors.New("only TCP node ports are served on loopback")

// At returns the address at which a node port is served on loopback, the zero AddrPort for a frontend that is not. It returns an error if the
// program cannot listen there, [ErrProtocol] if it does not try.
func (s *Server) At(k model.Key) (netip.AddrPort, error) {
	switch {
	case k.Addr.IsValid() || !slices.Contains(s.Families, k.Family):
		return netip.AddrPort{}, nil
	case k.Protocol != inet.TCP:
		return netip.AddrPort{}, ErrProtocol
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := netip.AddrPortFrom(inet.Localhost[k.Family], k.Port)
	if f := s.failures[k]; f != nil {
		return at, f.err
	}
	return at, nil
}

// State describes a server.
type State struct {
	// Listeners is the number of open ports of both families, Failures that of ports on which the program cannot listen.
	Listeners, Failures, Connections int
}

// State returns the present state.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{s.listeners[0] + s.listeners[1], len(s.failures), int(s.connections.Load())}
}
