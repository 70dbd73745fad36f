package watch

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeServer is an API server that answers with its name, or with a status, or not at all.
type fakeServer struct {
	*httptest.Server
	status int
}

func newFakeServer(t *testing.T, name string) *fakeServer {
	t.Helper()
	f := &fakeServer{status: http.StatusOK}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(f.status)
		fmt.Fprint(w, name, " ", r.Host == strings.TrimPrefix(f.URL, "http://"))
	}))
	t.Cleanup(f.Close)
	return f
}

// newClient returns a function that sends a request and returns the answer.
func newClient(t *testing.T, cfg *rest.Config) func(method string) (string, int) {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	lab.Must(t, err)
	return func(method string) (string, int) {
		t.Helper()
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader("event")
		}
		r, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+"/api", body)
		lab.Must(t, err)
		resp, err := client.Do(r)
		if err != nil {
			return "", 0
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		lab.Must(t, err)
		return string(text), resp.StatusCode
	}
}

func TestFailover(t *testing.T) {
	a, b, c := newFakeServer(t, "a"), newFakeServer(t, "b"), newFakeServer(t, "c")
	cfg := &rest.Config{Host: a.URL}
	current, err := Failover(cfg, []string{" " + b.URL, c.URL}, klog.Background())
	lab.Must(t, err)
	ask := newClient(t, cfg)
	check := func(when, method, want string, status int, at *fakeServer) {
		t.Helper()
		if got, code := ask(method); got != want || code != status {
			t.Errorf("%s: %q, %d, want %q, %d", when, got, code, want, status)
		}
		lab.Same(t, at.URL, current(), "%s: the server in use", when)
	}
	check("at first", http.MethodGet, "a true", http.StatusOK, a)
	a.status = http.StatusServiceUnavailable
	check("a is unavailable", http.MethodGet, "a true", http.StatusServiceUnavailable, b)
	check("afterwards", http.MethodGet, "b true", http.StatusOK, b)
	b.Close()
	check("b is down, and a request with a body is sent only once", http.MethodPost, "", 0, c)
	check("afterwards", http.MethodPost, "c true", http.StatusOK, c)
	c.status, a.status = http.StatusInternalServerError, http.StatusOK
	check("an error is an answer", http.MethodGet, "c true", http.StatusInternalServerError, c)
	c.Close()
	check("c is down", http.MethodGet, "a true", http.StatusOK, a)
	a.Close()
	check("all are down", http.MethodGet, "", 0, a)
	s := &servers{all: []string{"a", "b", "c"}, current: "a", logger: klog.Background()}
	for _, failed := range []string{"a", "b", "a"} { // the last failure is late
		s.switchFrom(failed, nil, io.EOF)
	}
	lab.Same(t, "c", s.at(), "the server in use after a late failure")
}

func TestOneServerHasNoFailover(t *testing.T) {
	cfg := &rest.Config{Host: "https://192.0.2.1:6443"}
	current, err := Failover(cfg, nil, klog.Background())
	if err != nil || current() != "https://192.0.2.1:6443" || cfg.WrapTransport != nil || cfg.Dial != nil {
		t.Errorf("%v, %v, %+v", current(), err, cfg)
	}
}

func TestServersThatDiffer(t *testing.T) {
	const other, password = "differ in more than host and port", "only the first address"
	for address, want := range map[string]string{
		"http://192.0.2.2": other, "https://192.0.2.2/cluster": other, "": other, "https://me:secret@192.0.2.2": password, "https://192.0.2.2:port": "host must be a URL",
	} {
		_, err := Failover(&rest.Config{Host: "https://192.0.2.1"}, []string{address}, klog.Background())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want an error with %q", address, err, want)
		}
	}
}
