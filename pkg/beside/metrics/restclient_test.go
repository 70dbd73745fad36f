package metrics

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestRequestsOfTheClientAreCounted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	lab.Must(t, err)
	before := teapots(t) // client-go counts the requests of all clients of the process
	if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Fatal("a teapot is an API server")
	}
	lab.Same(t, 1, teapots(t)-before, "requests with code 418 in rest_client_requests_total")
	if all, err := legacyregistry.DefaultGatherer.Gather(); err != nil || slices.ContainsFunc(all, func(f *dto.MetricFamily) bool { return f.GetName() == "go_goroutines" }) {
		t.Errorf("the Go runtime is measured twice in each scrape (%v)", err)
	}
}

// teapots returns the number of requests that got code 418 in client-go's metrics.
func teapots(t *testing.T) (requests float64) {
	t.Helper()
	families, err := RestClient().Gather()
	lab.Must(t, err)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "rest_client_") {
			t.Errorf("%s is gathered", f.GetName())
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "rest_client_requests_total" && l.GetName() == "code" && l.GetValue() == "418" {
					requests += m.GetCounter().GetValue()
				}
			}
		}
	}
	return requests
}
