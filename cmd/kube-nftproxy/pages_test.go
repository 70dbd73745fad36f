package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pages that tell of the program's inside, or change it, are there with --profiling only.
func TestDebugPagesHaveToBeAskedFor(t *testing.T) {
	for args, want := range map[string]int{"": http.StatusNotFound, "--profiling": http.StatusOK} {
		d := &daemon{settings: parse(t, args), registry: prometheus.NewRegistry(), started: time.Now()}
		port := d.metricsPort()
		for _, page := range []string{
			"GET /debug/pprof/", "GET /debug/pprof/heap", "GET /debug/pprof/goroutine?debug=2", "GET /debug/pprof/symbol", "GET /debug/flags", "PUT /debug/flags/v",
		} {
			method, path, _ := strings.Cut(page, " ")
			w := httptest.NewRecorder()
			port.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("0")))
			if w.Code != want {
				t.Errorf("%q: %s answers %d, want %d", args, page, w.Code, want)
			}
		}
	}
}
