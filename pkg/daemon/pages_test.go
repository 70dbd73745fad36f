package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Pages that show or change internals exist only with --profiling.
func TestDebugPagesHaveToBeAskedFor(t *testing.T) {
	for args, want := range map[string]int{"": http.StatusNotFound, "--profiling": http.StatusOK} {
		d := &daemon{Settings: parse(t, args), registry: prometheus.NewRegistry(), started: time.Now()}
		port := d.metricsPort()
		for _, page := range []string{
			"GET /debug/pprof/", "GET /debug/pprof/heap", "GET /debug/pprof/goroutine?debug=2", "GET /debug/pprof/symbol", "GET /debug/flags", "PUT /debug/flags/v",
		} {
			method, path, _ := strings.Cut(page, " ")
			w := httptest.NewRecorder()
			port.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("0")))
			lab.Same(t, want, w.Code, "%q: %s answers", args, page)
		}
	}
}

// /statusz lists the status page. Paths that kube-proxy does not serve are not served here either.
func TestStatusPageHasItsOwnPath(t *testing.T) {
	d := &daemon{Settings: parse(t, ""), registry: prometheus.NewRegistry(), started: time.Now()}
	port := d.metricsPort()
	get := func(path string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost:10249"
		port.ServeHTTP(w, r)
		return w
	}
	for path, want := range map[string]string{
		"/status": "200 text/html; charset=utf-8", "/statusz": "200 text/plain; charset=utf-8", "/": "404 text/plain; charset=utf-8",
		"/status/": "404 text/plain; charset=utf-8", "/status/page.js": "404 text/plain; charset=utf-8",
	} {
		if w := get(path); fmt.Sprint(w.Code, " ", w.Header().Get("Content-Type")) != want {
			t.Errorf("%s answers %d %s, want %s", path, w.Code, w.Header().Get("Content-Type"), want)
		}
	}
	if text := get("/statusz").Body.String(); !strings.Contains(text, "Paths: /configz /flagz /healthz /metrics /proxyMode /status\n") {
		t.Errorf("/statusz says:\n%s", text)
	}
}
