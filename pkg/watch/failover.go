package watch

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// servers is a transport that sends each request to the API server in use. After a failure of this server, the next server is in
// use. Other Kubernetes clients support only one address (kubernetes/kubernetes#18174).
type servers struct {
	http.RoundTripper
	configured []string
	// learned returns the hosts of API servers that the cluster lists; nil if the program does not learn them.
	learned func() []string
	logger  klog.Logger

	mu      sync.Mutex
	current string
}

// Failover adds addresses of API servers to a connection: the list others and, if learned is not nil, the hosts that learned returns. After a failure
// of one server, the connection uses the next one. All servers need the same scheme, path, credentials and certificate authority. current returns the
// address in use.
func Failover(cfg *rest.Config, others []string, learned func() []string, logger klog.Logger) (current func() string, err error) {
	if len(others) == 0 && learned == nil {
		return func() string { return cfg.Host }, nil
	}
	first, path, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	s := &servers{learned: learned, logger: logger, configured: []string{first.Host}, current: first.Host}
	for _, address := range others {
		other := rest.CopyConfig(cfg)
		other.Host = strings.TrimSpace(address)
		u, p, err := rest.DefaultServerUrlFor(other)
		switch {
		case err != nil:
			return nil, err
		case u.User != nil:
			return nil, errors.New("only the first address of an API server may hold a user and a password; they are sent to all servers")
		case u.Scheme != first.Scheme || u.Path != first.Path || p != path:
			return nil, fmt.Errorf("the addresses of API servers differ in more than host and port: %s and %s", first.Redacted(), u.Redacted())
		}
		s.configured = append(s.configured, u.Host)
	}
	if cfg.Dial == nil {
		const patience, keepAlive = 5 * time.Second, 30 * time.Second // client-go's default patience is 30 s
		cfg.Dial = (&net.Dialer{Timeout: patience, KeepAlive: keepAlive}).DialContext
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.RoundTripper = next
		return s
	})
	return func() string { return (&url.URL{Scheme: first.Scheme, Host: s.at(), Path: first.Path}).String() }, nil
}

// all returns the hosts of all servers, in the order of their use.
func (s *servers) all() []string {
	list := slices.Clone(s.configured)
	if s.learned == nil {
		return list
	}
	for _, host := range s.learned() {
		if !slices.Contains(list, host) {
			list = append(list, host)
		}
	}
	return list
}

func (s *servers) at() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// RoundTrip implements http.RoundTripper. If it cannot connect to a server, it sends a request without a body to the next server. It
// returns all other failures to client-go, which retries.
func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	for tried := 1; ; tried++ {
		host := s.at()
		sent := r.Clone(r.Context())
		sent.URL.Host, sent.Host = host, ""
		resp, err := s.RoundTripper.RoundTrip(sent)
		if r.Context().Err() != nil || err == nil && !unavailable(resp.StatusCode) {
			return resp, err
		}
		n := s.switchFrom(host, resp, err)
		var unsent *net.OpError
		if !errors.As(err, &unsent) || unsent.Op != "dial" || r.Body != nil || tried >= n {
			return resp, err
		}
	}
}

// unavailable reports whether a status means that an API server, or a load balancer before it, cannot serve now.
func unavailable(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// switchFrom makes the next server the current one, unless another request has done so. It returns the number of servers.
func (s *servers) switchFrom(host string, resp *http.Response, err error) int {
	if err == nil {
		err = fmt.Errorf("it answered %s", resp.Status)
	}
	list := s.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := list[(slices.Index(list, host)+1)%len(list)]
	if host != s.current || next == host {
		return len(list)
	}
	s.current = next
	s.logger.Info("API server failed; using the next one", "server", host, "next", next, "err", err)
	return len(list)
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (s *servers) WrappedRoundTripper() http.RoundTripper { return s.RoundTripper }

// mostAPIServers limits the learned addresses, because a request may try all of them.
const mostAPIServers = 16

// APIServers returns the addresses and ports of at most mostAPIServers ready API servers. It reads only the EndpointSlice default/kubernetes, which
// API servers write. A tenant may write other slices of the Service, and requests contain credentials.
func (s *Store) APIServers() (hosts []string) {
	name := types.NamespacedName{Namespace: "default", Name: "kubernetes"}
	stored, slice := s.slices.get(name), &discoveryv1.EndpointSlice{}
	if stored == nil || stored.excluded || stored.service != name.Name || !(storedSlice{s, stored}).Read(slice) {
		return nil
	}
	port := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == "https" && p.Port != nil })
	if port < 0 {
		return nil
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if ready := e.Conditions.Ready; ready != nil && !*ready || len(e.Addresses) == 0 || len(hosts) == mostAPIServers {
			continue
		}
		if _, err := netip.ParseAddr(e.Addresses[0]); err == nil {
			hosts = append(hosts, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*slice.Ports[port].Port))))
		}
	}
	return hosts
}
