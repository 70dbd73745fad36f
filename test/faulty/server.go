package faulty

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Config says whom to stand before.
type Config struct {
	// Listen opens the listener, where a client can reach it. It is called again, with the address of the first one, after a
	// time in which nobody listened.
	Listen func(address string) (net.Listener, error)
	// Upstream is the API server, and the user whom it takes the requests for.
	Upstream *rest.Config
}

// Server passes requests on to an API server, as long as nothing else is asked for. Its methods may be called from any goroutine.
type Server struct {
	config  Config
	proxy   *httputil.ReverseProxy
	address string
	// requests counts lists and watches, connections the connections of clients.
	requests, connections atomic.Int64

	mu        sync.Mutex
	authority *Authority
	tls       *tls.Config  // never changed, but replaced
	http      *http.Server // nil while nobody listens
	listener  *listener
	watches   map[*stream]struct{}
	intercept func(http.ResponseWriter, *http.Request) bool
	edit      func(Event) []Event
	token     string
}

// Start serves until Close.
func Start(c Config) (*Server, error) {
	transport, err := rest.TransportFor(c.Upstream)
	if err != nil {
		return nil, fmt.Errorf("start faulty server: %w", err)
	}
	target, err := url.Parse(c.Upstream.Host)
	if err != nil {
		return nil, fmt.Errorf("start faulty server: %w", err)
	}
	s := &Server{config: c, watches: map[*stream]struct{}{}}
	s.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization")               // the upstream's is put in
			r.Out.Header.Set("Accept-Encoding", "identity") // API servers since v1.37 compress the first events of a watch
		},
		Transport: transport, FlushInterval: -1, ModifyResponse: s.follow,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { Refuse(w, http.StatusBadGateway) },
	}
	s.tls = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	own, err := NewAuthority()
	if err == nil {
		err = s.Certify(own)
	}
	if err != nil {
		return nil, fmt.Errorf("start faulty server: %w", err)
	}
	if err := s.Up(); err != nil {
		return nil, err
	}
	return s, nil
}

// Up has the server listen, at first and after [Server.Down].
func (s *Server) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return nil
	}
	l, err := s.config.Listen(s.address)
	if err != nil {
		return fmt.Errorf("start faulty server: %w", err)
	}
	s.address = l.Addr().String()
	s.listener = &listener{Listener: l, accepted: &s.connections, open: map[net.Conn]struct{}{}}
	// Errors of single connections are what this is for; nobody wants to read of them.
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve), TLSConfig: &tls.Config{
		GetConfigForClient: s.currentTLS, NextProtos: s.tls.NextProtos, MinVersion: tls.VersionTLS12,
	}, ErrorLog: silent()}
	go func(h *http.Server, l net.Listener) { _ = h.ServeTLS(l, "", "") }(s.http, s.listener) // it ends when the server is closed
	return nil
}

// Down resets all connections and refuses new ones.
func (s *Server) Down() {
	s.Cut()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		_ = s.http.Close()
		s.http = nil
	}
}

// Close ends the server.
func (s *Server) Close() { s.Down() }

// Cut resets all connections, also in the middle of an event, and returns how many there were.
func (s *Server) Cut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return 0
	}
	return s.listener.reset()
}

// Watches returns how many there are.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// EndWatches ends all watches of a resource, or of all if it is "", as the API server does when their time is up, or when a client
// reads too slowly. It returns how many there were.
func (s *Server) EndWatches(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if resource == "" || resource == w.resource {
			w.end()
			n++
		}
	}
	return n
}

// Expire ends all watches with an event that says that what comes next isn't known any more, and returns how many there were.
func (s *Server) Expire() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.expire()
		n++
	}
	return n
}

// Intercept has a function look at all further requests; those for which it returns true it has answered. A nil one intercepts
// nothing.
func (s *Server) Intercept(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Edit has a function replace all further events of watches; it may block. A nil one changes nothing.
func (s *Server) Edit(f func(Event) []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edit = f
}

// Require refuses all further requests that don't bear a token with status 401; "" requires none.
func (s *Server) Require(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Pass passes a request on to the API server.
func (s *Server) Pass(w http.ResponseWriter, r *http.Request) { s.proxy.ServeHTTP(w, r) }

// Load returns the numbers of lists and watches, and of connections, since the start.
func (s *Server) Load() (requests, connections int) {
	return int(s.requests.Load()), int(s.connections.Load())
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.requests.Add(1)
	}
	s.mu.Lock()
	intercept, token := s.intercept, s.token
	s.mu.Unlock()
	switch {
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		Refuse(w, http.StatusUnauthorized)
	case intercept == nil || !intercept(w, r):
		s.proxy.ServeHTTP(w, r)
	}
}

// follow puts what is watched in our hands.
func (s *Server) follow(resp *http.Response) error {
	if !IsWatch(resp.Request) || resp.StatusCode != http.StatusOK {
		return nil
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/vnd.kubernetes.protobuf") {
		return nil
	}
	w := newStream(Resource(resp.Request), resp.Body)
	s.mu.Lock()
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	resp.Body = w
	go func() {
		w.run(s.edited)
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}()
	return nil
}

func (s *Server) edited(e Event) []Event {
	s.mu.Lock()
	edit := s.edit
	s.mu.Unlock()
	if edit == nil {
		return []Event{e}
	}
	return edit(e)
}

// Credentials are files by which a client knows the server, and proves who it is. What is "" it hasn't; without a CA, the server's own is
// written into the kubeconfig file.
type Credentials struct{ Token, CA, Certificate, Key string }

// Kubeconfig writes a kubeconfig file.
func (s *Server) Kubeconfig(path string, c Credentials) error {
	config := clientcmdapi.NewConfig()
	cluster := &clientcmdapi.Cluster{Server: "https://" + s.address, CertificateAuthority: c.CA, TLSServerName: serverName}
	if c.CA == "" {
		cluster.CertificateAuthorityData = s.CA()
	}
	config.Clusters["faulty"] = cluster
	config.AuthInfos["faulty"] = &clientcmdapi.AuthInfo{TokenFile: c.Token, ClientCertificate: c.Certificate, ClientKey: c.Key}
	config.Contexts["faulty"] = &clientcmdapi.Context{Cluster: "faulty", AuthInfo: "faulty"}
	config.CurrentContext = "faulty"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Address is where the server listens.
func (s *Server) Address() string { return s.address }

// Resource is the plural name of what a request is about, as in services.
func Resource(r *http.Request) string {
	return r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
}

// IsWatch reports whether a request starts a watch.
func IsWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// Refuse answers with a status as the API server does.
func Refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code),
		Message: "refused on purpose", Reason: reasons[code],
	}
	_ = json.NewEncoder(w).Encode(status) // the client may have gone
}

var reasons = map[int]metav1.StatusReason{
	http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden,
	http.StatusGone: metav1.StatusReasonExpired, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
}

// listener knows its connections.
type listener struct {
	net.Listener
	accepted *atomic.Int64
	mu       sync.Mutex
	open     map[net.Conn]struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return &connection{c, l}, nil
}

func (l *listener) reset() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // discard unsent data, and send an RST
		}
		_ = c.Close()
		n++
	}
	clear(l.open)
	return n
}

type connection struct {
	net.Conn
	of *listener
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Listen returns a function for [Config.Listen] that listens at an address at first.
func Listen(first string, in func(func() error) error) func(string) (net.Listener, error) {
	return func(address string) (l net.Listener, err error) {
		if address == "" {
			address = first
		}
		err = in(func() (err error) {
			l, err = new(net.ListenConfig).Listen(context.Background(), "tcp", address)
			return err
		})
		return l, err
	}
}
