package watch

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// servers is a transport that sends each request to the API server in use. After a failure of this server, the next
// server is in use. Other Kubernetes clients support only one address (kubernetes/kubernetes#18174).
type servers struct {
	http.RoundTripper
	// all are the hosts of all servers, in the order of their use.
	all    []string
	logger klog.Logger

	mu      sync.Mutex
	current string
}

// Failover adds other addresses of API servers to a connection. After a failure of one server, the connection uses the
// next one. All servers need the same scheme, path, credentials and certificate authority. current returns the address
// in use.
func Failover(cfg *rest.Config, others []string, logger klog.Logger) (current func() string, err error) {
	if len(others) == 0 {
		return func() string { return cfg.Host }, nil
	}
	first, path, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	s := &servers{logger: logger, all: []string{first.Host}, current: first.Host}
	for _, address := range others {
		other := rest.CopyConfig(cfg)
		other.Host = strings.TrimSpace(address)
		u, p, err := rest.DefaultServerUrlFor(other)
		switch {
		case err != nil:
			return nil, err
		case u.User != nil:
			return nil, errors.New("only the first address of an API server may hold a user and a password; " +
				"they are sent to all servers")
		case u.Scheme != first.Scheme || u.Path != first.Path || p != path:
			return nil, fmt.Errorf("the addresses of API servers differ in more than host and port: %s and %s",
				first.Redacted(), u.Redacted())
		}
		s.all = append(s.all, u.Host)
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

func (s *servers) at() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// RoundTrip implements http.RoundTripper. If it cannot connect to a server, it sends a request without a body to the
// next server. It returns all other failures to client-go, which retries.
func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	for tried := 1; ; tried++ {
		host := s.at()
		sent := r.Clone(r.Context())
		sent.URL.Host, sent.Host = host, ""
		resp, err := s.RoundTripper.RoundTrip(sent)
		if r.Context().Err() != nil || err == nil && !unavailable(resp.StatusCode) {
			return resp, err
		}
		s.switchFrom(host, resp, err)
		var unsent *net.OpError
		if !errors.As(err, &unsent) || unsent.Op != "dial" || r.Body != nil || tried >= len(s.all) {
			return resp, err
		}
	}
}

// unavailable reports whether a status means that an API server, or a load balancer before it, cannot serve now.
func unavailable(status int) bool {
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// switchFrom makes the next server the current one, unless another request has done so.
func (s *servers) switchFrom(host string, resp *http.Response, err error) {
	if err == nil {
		err = fmt.Errorf("it answered %s", resp.Status)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if host != s.current {
		return
	}
	s.current = s.all[(slices.Index(s.all, host)+1)%len(s.all)]
	s.logger.Info("API server failed; using the next one", "server", host, "next", s.current, "err", err)
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (s *servers) WrappedRoundTripper() http.RoundTripper { return s.RoundTripper }
