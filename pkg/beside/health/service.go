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

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Check is the health check of one Service for load balancers: this node reports the number of the Service's local endpoints at
// spec.healthCheckNodePort.
type Check struct {
	Port uint16
	// Served are the families of the Service. In other families, the port is closed.
	Served [2]bool
	// Local is the number of distinct addresses of ready endpoints on this node, by family.
	Local [2]int
}

// Services serves the health checks of Services with externalTrafficPolicy Local (kube-proxy:
// pkg/proxy/healthcheck/service_health.go). Only one goroutine may call Sync.
type Services struct {
	// healthy reports whether no sync is overdue. If it returns false, all checks answer 503, regardless of the endpoints.
	healthy func() bool
	// failed receives one problem for each Service whose port cannot be opened.
	failed func(model.Problem)
	listen func(network, address string) (net.Listener, error)
	crowd  *crowd

	servers map[checkAt]server
	addrs   []netip.Addr

	mu     sync.RWMutex
	checks map[types.NamespacedName]Check
	// broken holds the reason for each address that cannot be opened, by Service.
	broken map[types.NamespacedName]map[netip.AddrPort]string
}

// mostRetries is the largest number of failed addresses that one call of [Services.Sync] retries: the loop may call it twice a second.
const mostRetries = 100

// checkAt is one address that serves one Service's check.
type checkAt struct {
	service types.NamespacedName
	addr    netip.AddrPort
}

// server serves one check at one address.
type server struct {
	*http.Server
	listener net.Listener
}

// close closes the port before it returns. http.Server.Close alone would not close the listener if Serve has not started yet.
func (s server) close() {
	_ = s.listener.Close() // Server.Close may have closed it already
	_ = s.Server.Close()
}

// NewServices returns a server without checks.
func NewServices(healthy func() bool, failed func(model.Problem)) *Services {
	return &Services{
		healthy: healthy, failed: failed, listen: net.Listen, crowd: newCrowd(mostConnections),
		servers: map[checkAt]server{}, broken: map[types.NamespacedName]map[netip.AddrPort]string{},
	}
}

// Sync replaces all checks and the addresses of this node that serve them. An unspecified address stands for all addresses of its
// family. If a port cannot be opened, other ports are not affected: Sync reports the Service once, and each later call retries a
// limited number of failed addresses. It returns the number of failed addresses.
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
			if c.Served[inet.FamilyOf(a)] {
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
		if _, open := s.servers[at]; open {
			continue
		}
		if _, known := s.broken[at.service][at.addr]; known {
			if retries++; retries > mostRetries {
				continue // the next Sync selects others: the order of a map is random
			}
		}
		s.open(at)
	}
	for _, why := range s.broken {
		broken += len(why)
	}
	return broken
}

// stay reports whether ports, families and addresses are unchanged.
func (s *Services) stay(checks map[types.NamespacedName]Check, addrs []netip.Addr) bool {
	if len(checks) != len(s.checks) || !slices.Equal(addrs, s.addrs) {
		return false
	}
	for name, c := range checks {
		if old, known := s.checks[name]; !known || old.Port != c.Port || old.Served != c.Served {
			return false
		}
	}
	return true
}

// Broken returns the reasons why a Service's port cannot be opened, one line for each address. It is safe for concurrent use.
func (s *Services) Broken(name types.NamespacedName) (why []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, reason := range s.broken[name] {
		why = append(why, reason)
	}
	slices.Sort(why)
	return why
}

// Close closes all ports.
func (s *Services) Close() { s.Sync(nil, nil) }

// open opens one address, or records and reports the failure.
func (s *Services) open(at checkAt) {
	network := [...]string{"tcp4", "tcp6"}[inet.FamilyOf(at.addr.Addr())]
	l, err := s.listen(network, at.addr.String())
	if reported := s.note(at, err); err != nil {
		if !reported {
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

// note records the result of opening an address. It returns true if the Service had a failed address before.
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

// answer returns a handler that reports the number of local endpoints, on any path and for any method.
func (s *Services) answer(at checkAt) http.Handler {
	family := inet.FamilyOf(at.addr.Addr())
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
