package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Check is the health check of one Service for load balancers: this node reports the number of the Service's local
// endpoints at spec.healthCheckNodePort.
type Check struct {
	Port uint16
	// Created is the time of the Service's creation. If two Services have one port, the older Service gets it.
	Created time.Time
	// Served are the families of the Service. In other families, the port is closed.
	Served [2]bool
	// Local is the number of distinct addresses of ready endpoints on this node, by family.
	Local [2]int
}

// ServicesConfig holds the parts of [Services].
type ServicesConfig struct {
	// Healthy reports whether no sync is overdue. If it returns false, all checks answer 503, regardless of the
	// endpoints.
	Healthy func() bool
	// Failed receives one problem for each Service whose port cannot be opened, and Withdraw the same problem when it
	// no longer exists.
	Failed, Withdraw func(model.Problem)
	// Files is the budget of file descriptors. Each family of a Service takes one.
	Files *descriptors.Budget
}

// Services serves the health checks of Services with externalTrafficPolicy Local (kube-proxy:
// pkg/proxy/healthcheck/service_health.go). Each family of a Service has one socket, however many addresses the node
// has: at the only address of the family, or else at all addresses. A socket at all addresses closes connections to
// addresses that serve no checks. Only one goroutine may call Sync.
type Services struct {
	ServicesConfig
	listen func(network, address string) (net.Listener, error)
	crowd  *crowd

	servers map[checkAt]server
	// given are the addresses that serve checks, addrs the same by family, sorted. places are the addresses of the
	// sockets.
	given  []netip.Addr
	addrs  [2]atomic.Pointer[[]netip.Addr]
	places []netip.Addr
	// younger has the older Service with the same port for each check that cannot have it.
	younger map[checkAt]types.NamespacedName
	broken  descriptors.Failures[checkAt]

	mu     sync.RWMutex
	checks map[types.NamespacedName]Check
}

// checkAt is the socket of one Service's check.
type checkAt struct {
	service types.NamespacedName
	addr    netip.AddrPort
}

// server serves one check at one address.
type server struct {
	*http.Server
	listener net.Listener
}

// close closes the port before it returns. http.Server.Close alone would not close the listener if Serve has not
// started yet.
func (s server) close() {
	_ = s.listener.Close() // Server.Close may have closed it already
	_ = s.Server.Close()
}

// NewServices returns a server without checks.
func NewServices(c ServicesConfig) *Services {
	return &Services{
		ServicesConfig: c, listen: net.Listen, crowd: newCrowd(descriptors.Clients()), servers: map[checkAt]server{},
		broken: descriptors.Failures[checkAt]{Report: c.Failed, Withdraw: c.Withdraw, Patience: 1},
	}
}

// Sync replaces all checks and the addresses of this node that serve them. An unspecified address stands for all
// addresses of its family. If a port cannot be opened, other ports are not affected: Sync reports the Service once,
// and each later call retries a limited number of failed addresses. It returns the number of failed addresses.
func (s *Services) Sync(checks map[types.NamespacedName]Check, addrs []netip.Addr) (broken int) {
	places := s.places
	if !slices.Equal(addrs, s.given) {
		s.given = slices.Clone(addrs)
		places = s.serve(addrs)
	}
	moved := !s.stay(checks, places)
	s.mu.Lock()
	s.checks = maps.Clone(checks)
	s.mu.Unlock()
	var ordered []checkAt
	if moved {
		s.places = places
		ordered = s.clean()
	}
	for _, at := range s.broken.Due(func(at checkAt) bool { return !s.isYounger(at) }) {
		s.open(at)
	}
	for _, at := range ordered {
		if _, open := s.servers[at]; !open && s.broken.Of(at) == nil {
			s.open(at)
		}
	}
	return s.broken.Len()
}

// serve sets the addresses that serve checks. It returns the addresses of sockets: for each family, the only address,
// or the unspecified one.
func (s *Services) serve(addrs []netip.Addr) (places []netip.Addr) {
	for _, f := range inet.Families {
		list := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return inet.FamilyOf(a) != f })
		slices.SortFunc(list, netip.Addr.Compare)
		list = slices.Compact(list)
		s.addrs[f].Store(&list)
		if len(list) > 1 {
			places = append(places, unspecified[f])
		} else {
			places = append(places, list...)
		}
	}
	return places
}

var unspecified = [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}

// stay reports whether ports, families and addresses of sockets are unchanged.
func (s *Services) stay(checks map[types.NamespacedName]Check, places []netip.Addr) bool {
	if len(checks) != len(s.checks) || !slices.Equal(places, s.places) {
		return false
	}
	for name, c := range checks {
		if old, known := s.checks[name]; !known || old.Port != c.Port || old.Served != c.Served ||
			!old.Created.Equal(c.Created) {
			return false
		}
	}
	return true
}

// clean closes sockets, and forgets failures, that no check needs. It returns all sockets in the order of their
// Services' age.
func (s *Services) clean() (ordered []checkAt) {
	set, ordered := s.wanted()
	wanted := func(at checkAt) bool { _, wanted := set[at]; return wanted }
	for at, server := range s.servers {
		if !wanted(at) || s.isYounger(at) {
			server.close()
			delete(s.servers, at)
		}
	}
	for at := range s.broken.All() {
		if !wanted(at) {
			s.broken.Forget(at)
		}
	}
	for at, owner := range s.younger {
		s.note(at, taken{takenBy(at.service, owner)})
	}
	return ordered
}

// wanted returns all sockets, as a set and in the order of their Services' age. It also sets younger.
func (s *Services) wanted() (set map[checkAt]struct{}, ordered []checkAt) {
	set, s.younger = map[checkAt]struct{}{}, map[checkAt]types.NamespacedName{}
	for name, c := range s.checks {
		for _, a := range s.places {
			if c.Served[inet.FamilyOf(a)] {
				ordered = append(ordered, checkAt{name, netip.AddrPortFrom(a, c.Port)})
			}
		}
	}
	slices.SortFunc(ordered, func(a, b checkAt) int {
		return cmp.Or(s.checks[a.service].Created.Compare(s.checks[b.service].Created),
			model.CompareNames(a.service, b.service), a.addr.Compare(b.addr))
	})
	owners := map[netip.AddrPort]types.NamespacedName{}
	for _, at := range ordered {
		set[at] = struct{}{}
		if owner, taken := owners[at.addr]; taken {
			s.younger[at] = owner
		} else {
			owners[at.addr] = at.service
		}
	}
	return set, ordered
}

func (s *Services) isYounger(at checkAt) bool { _, younger := s.younger[at]; return younger }

// taken is the error of a Service whose port an older Service has. takenBy returns its text: only Services of the same
// namespace are named, because tenants read Events.
type taken struct{ error }

func takenBy(name, owner types.NamespacedName) error {
	if name.Namespace != owner.Namespace {
		return errors.New("an older Service of another namespace has the same health check node port")
	}
	return fmt.Errorf("the older Service %s has the same health check node port", owner.Name)
}

// Broken returns the reasons why a Service's port cannot be opened, with their remedies in brackets, one line for each
// address. It is safe for concurrent use.
func (s *Services) Broken(name types.NamespacedName) (why []string) {
	for at, err := range s.broken.OfService(name) {
		why = append(why, fmt.Sprintf("%v (%s)", err, fix(at, err)))
	}
	slices.Sort(why)
	return why
}

// Close closes all ports.
func (s *Services) Close() { s.Sync(nil, nil) }

// open opens one socket, or records and reports the failure.
func (s *Services) open(at checkAt) {
	family := inet.FamilyOf(at.addr.Addr())
	l, err := s.Files.Listen(at.service.Namespace, func() (net.Listener, error) {
		return s.listen([...]string{"tcp4", "tcp6"}[family], at.addr.String())
	})
	if err != nil {
		s.note(at, err)
		return
	}
	s.broken.Forget(at)
	served := server{bounded(s.answer(at), s.crowd), selective{l, &s.addrs[family]}}
	s.servers[at] = served
	go func() { _ = served.Serve(served.listener) }()
}

// note records the reason why a socket is not open.
func (s *Services) note(at checkAt, why error) {
	s.broken.Note(at, at.service, why, func() model.Problem { return problem(at, why) })
}

// problem returns the problem of a Service. The reason is that of kube-proxy, which reports only ports in use. The
// fix for these depends on the node, so only the command services has it.
func problem(at checkAt, why error) model.Problem {
	p := model.Problem{
		Kind: "Service", Name: at.service, Field: "spec.healthCheckNodePort",
		Event: "FailedToStartServiceHealthcheck", Action: "Listen",
		Reason: fmt.Sprintf("failed to start healthcheck %q on port %d: %v", at.service, at.addr.Port(), why),
	}
	if _, limited := errors.AsType[*descriptors.Error](why); limited {
		p.Impact, p.Fix = "load balancers send no traffic of this Service to this node", fix(at, why)
	}
	return p
}

// fix returns the remedy for the reason why a socket is not open.
func fix(at checkAt, why error) string {
	if limit, limited := errors.AsType[*descriptors.Error](why); limited {
		return limit.Fix()
	}
	if errors.As(why, &taken{}) {
		return "delete one of the two Services and create it again, so that it gets another port"
	}
	return fmt.Sprintf("ss -ltnp sport = :%d shows the process that uses the port", at.addr.Port())
}

// selective is a listener that closes connections to addresses that serve no checks.
type selective struct {
	net.Listener
	addrs *atomic.Pointer[[]netip.Addr]
}

// Accept implements [net.Listener].
func (l selective) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.serves(c) {
			return c, err
		}
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.SetLinger(0) // a reset, as if the port were closed
		}
		_ = c.Close()
	}
}

func (l selective) serves(c net.Conn) bool {
	at, ok := c.LocalAddr().(*net.TCPAddr)
	addrs := *l.addrs.Load()
	if !ok || len(addrs) < 2 { //nolint:mnd // the listener has the only address
		return true
	}
	_, found := slices.BinarySearchFunc(addrs, at.AddrPort().Addr().Unmap().WithZone(""), netip.Addr.Compare)
	return found
}

// answer returns a handler that reports the number of local endpoints, on any path and for any method.
func (s *Services) answer(at checkAt) http.Handler {
	family := inet.FamilyOf(at.addr.Addr())
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.RLock()
		local := s.checks[at.service].Local[family]
		s.mu.RUnlock()
		healthy, code := s.Healthy(), http.StatusServiceUnavailable
		if local > 0 && healthy {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		send(w, "application/json", code, fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": "+
			"%q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
			at.service.Namespace, at.service.Name, local, healthy))
	})
}
