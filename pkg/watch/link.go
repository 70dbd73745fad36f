package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// link is the connection to the API server. It logs once when the API server does not answer, and once when it answers
// again: client-go does not log refused connections.
type link struct {
	mu   sync.Mutex
	lost time.Time // zero while the API server answers
}

// record logs a change from answered to unanswered requests, or back. err is the result of the last request.
func (l *link) record(ctx context.Context, err error) {
	var unanswered *url.Error
	var answer apierrors.APIStatus
	lost, found := errors.As(err, &unanswered), err == nil || errors.As(err, &answer)
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case lost && l.lost.IsZero():
		l.lost = time.Now()
		logger.Info("Cannot reach the API server; the rules stay as they are until it answers", "err", err)
	case found && !l.lost.IsZero():
		logger.Info("Reached the API server again", "after", time.Since(l.lost).Round(time.Millisecond))
		l.lost = time.Time{}
	}
}

// confirmed returns the last time at which the API server may have answered: now, or the time of the loss.
func (l *link) confirmed() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost.IsZero() {
		return time.Now()
	}
	return l.lost
}

// isSilent reports whether client-go retries a watch after this error without calling an error handler.
func isSilent(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// pauses returns the pauses between retries while the API server fails. client-go's informers back off to one minute,
// so changes could stay unseen for a minute after an outage. The kubelet's intervals are similar to these.
func pauses() wait.Backoff {
	return wait.Backoff{Duration: 800 * time.Millisecond, Cap: 5 * time.Second, Steps: 8, Factor: 2, Jitter: 1}
}

// endingClock ends all waits when the source stops: a reflector ignores the context in some of its pauses.
type endingClock struct {
	clock.RealClock
	ended chan struct{}
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	after := make(chan time.Time, 1)
	go func() {
		select {
		case now := <-time.After(d):
			after <- now
		case <-c.ended:
			after <- time.Now()
		}
	}()
	return after
}

// Impatient limits the delay that a server can impose on clients (the header Retry-After). It adds a random delay of at
// most the same length. client-go obeys any delay exactly and without a log line. If an API server announced a
// maintenance of an hour and ended it early, the program would receive no changes for the rest of the hour. If an
// overloaded server delayed all nodes by a second, all of them would retry at the same moment.
func Impatient(next http.RoundTripper) http.RoundTripper { return impatient{next} }

type impatient struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	const header = "Retry-After"
	resp, err := i.RoundTripper.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	longest := int(pauses().Cap.Seconds())
	seconds, err := strconv.Atoi(resp.Header.Get(header))
	if err != nil || seconds <= 0 {
		return resp, nil //nolint:nilerr // there is no number of seconds
	}
	seconds = min(seconds, longest)
	resp.Header.Set(header, strconv.Itoa(seconds))
	select {
	case <-time.After(time.Duration(rand.Float64() * float64(time.Duration(seconds)*time.Second))):
	case <-r.Context().Done():
	}
	return resp, nil
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.RoundTripper }

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

// User returns the API server's name of the client's user. Every authenticated user may query this name.
func User(ctx context.Context, client *kubeapi.Client) (string, error) {
	review, err := client.Reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("query the user name: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}
