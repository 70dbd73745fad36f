package health

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Check is what a load balancer may ask about one Service: spec.healthCheckNodePort, on which this node says how many of
// the Service's endpoints it has.
type Check struct {
	Port uint16
	// Served says in which families the Service is served: in the others nobody listens.
	Served [2]bool
	// Local is the number of distinct addresses of ready endpoints on this node, by family.
	Local [2]int
}

// Services answers load balancers that ask whether this node has endpoints of a Service with externalTrafficPolicy Local
// (kube-proxy: pkg/proxy/healthcheck/service_health.go). Sync belongs to one goroutine.
type Services struct {
	// healthy tells whether the rules are up to date: a proxy that can't follow says so to load balancers too.
	healthy func() bool
	// failed is told of each port that can't be listened on.
	failed func(model.Problem)
	listen func(network, address string) (net.Listener, error)
	crowd  *crowd

	servers map[checkAt]server
	addrs   []netip.Addr

	mu     sync.RWMutex
	checks map[types.NamespacedName]Check
	// broken says of each address that can't be listened on why, by Service.
	broken map[types.NamespacedName]map[netip.AddrPort]string
}

// mostRetries is how many addresses that couldn't be listened on one [Services.Sync] tries again: it may be called twice a second.
const mostRetries = 100

// checkAt is one address on which one Service's check is served.
type checkAt struct {
	service types.NamespacedName
	addr    netip.AddrPort
}

// server is what serves one check at one address.
type server struct {
	*http.Server
	listener net.Listener
}

// close frees the port before it returns. http.Server.Close doesn't know a listener whose Serve hasn't begun yet.
func (s server) close() {
	_ = s.listener.Close() // again by Server.Close, where Serve has begun
	_ = s.Server.Close()
}

// NewServices returns a server of health checks that listens nowhere yet.
func NewServices(healthy func() bool, failed func(model.Problem)) *Services {
	return &Services{
		healthy: healthy, failed: failed, listen: net.Listen, crowd: newCrowd(mostConnections),
		servers: map[checkAt]server{}, broken: map[types.NamespacedName]map[netip.AddrPort]string{},
	}
}

// Sync makes the given checks all that there are, served on the given addresses of this node; an unspecified address stands
// for all of its family. A port that can't be listened on is reported once for each Service and tried again at each Sync, with no more
// than some others; all other ports are served all the same. It returns the number of those that can't.
func (s *Services) Sync(checks map[types.NamespacedName]Check, addrs []netip.Addr) (broken int) {
	moved := !s.stay(checks, addrs)
	s.mu.Lock()
	s.checks = maps.Clone(checks)
	s.mu.Unlock()
	if !moved && len(s.broken) == 0 {
		return 0
	}
	s.addrs = slices.Clone(addrs)
	wanted := map[checkAt]struct{}{}
	for name, c := range checks {
		for _, a := range addrs {
			if c.Served[model.FamilyOf(a)] {
				wanted[checkAt{name, netip.AddrPortFrom(a, c.Port)}] = struct{}{}
			}
		}
	}
	for at, server := range s.servers {
		if _, ok := wanted[at]; !ok {
			server.close()
			delete(s.servers, at)
		}
	}
	s.mu.Lock()
	for name, why := range s.broken {
		maps.DeleteFunc(why, func(addr netip.AddrPort, _ string) bool { _, ok := wanted[checkAt{name, addr}]; return !ok })
		if len(why) == 0 {
			delete(s.broken, name)
		}
	}
	s.mu.Unlock()
	retries := 0
	for at := range wanted {
		if _, is := s.servers[at]; is {
			continue
		}
		if _, known := s.broken[at.service][at.addr]; known {
			if retries++; retries > mostRetries {
				continue // the order is another one next time
			}
		}
		s.open(at)
	}
	for _, why := range s.broken {
		broken += len(why)
	}
	return broken
}

// stay reports whether checks are to be served just where they are served now.
func (s *Services) stay(checks map[types.NamespacedName]Check, addrs []netip.Addr) bool {
	if len(checks) != len(s.checks) || !slices.Equal(addrs, s.addrs) {
		return false
	}
	for name, c := range checks {
		if old, is := s.checks[name]; !is || old.Port != c.Port || old.Served != c.Served {
			return false
		}
	}
	return true
}

// Broken says why a Service's port can't be listened on, one line for each address. Any goroutine may call it.
func (s *Services) Broken(name types.NamespacedName) (why []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, reason := range s.broken[name] {
		why = append(why, reason)
	}
	slices.Sort(why)
	return why
}

// Close stops listening.
func (s *Services) Close() { s.Sync(nil, nil) }

func (s *Services) open(at checkAt) {
	network := [...]string{"tcp4", "tcp6"}[model.FamilyOf(at.addr.Addr())]
	l, err := s.listen(network, at.addr.String())
	if told := s.note(at, err); err != nil {
		if !told {
			s.failed(model.Problem{
				Kind: "Service", Name: at.service, Field: "spec.healthCheckNodePort", Event: "FailedToStartServiceHealthcheck", Action: "Listen",
				Reason: fmt.Sprintf("failed to start healthcheck %q on port %d: %v", at.service, at.addr.Port(), err),
			})
		}
		return
	}
	served := server{bounded(s.answer(at), s.crowd), l}
	s.servers[at] = served
	go func() { _ = served.Serve(l) }()
}

// note notes what came of listening at an address, and reports whether its Service had another failure before.
func (s *Services) note(at checkAt, err error) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := s.broken[at.service]
	before = len(why) > 0
	switch {
	case err == nil:
		delete(why, at.addr)
	case why == nil:
		s.broken[at.service] = map[netip.AddrPort]string{at.addr: err.Error()}
	default:
		why[at.addr] = err.Error()
	}
	if err == nil && before && len(why) == 0 {
		delete(s.broken, at.service)
	}
	return before
}

// answer says, on any path and by any method, how many endpoints this node has.
func (s *Services) answer(at checkAt) http.Handler {
	family := model.FamilyOf(at.addr.Addr())
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.RLock()
		local := s.checks[at.service].Local[family]
		s.mu.RUnlock()
		healthy := s.healthy()
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		if local > 0 && healthy {
			w.WriteHeader(http.StatusOK)
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
			at.service.Namespace, at.service.Name, local, healthy)
	})
}
