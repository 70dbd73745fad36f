package health

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// MetricsHandler returns the handler of the metrics port: /metrics with the metrics of g, /proxyMode, and /healthz,
// which always succeeds, as in kube-proxy. The caller can add paths. started is the start of the process, for the
// header Process-Start-Time-Unix.
func MetricsHandler(g prometheus.Gatherer, started time.Time) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", keepAnswers(promhttp.HandlerFor(g, promhttp.HandlerOpts{
		// If one collector fails, such as that of /proc, the metrics of the others are still served.
		ErrorHandling:    promhttp.ContinueOnError,
		ProcessStartTime: started,
		// keepAnswers already serializes requests.
		MaxRequestsInFlight: 1,
	})))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "nftables") })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		// For /metrics/slis. ObserveHealthcheck never returns an error.
		_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
		if _, verbose := r.URL.Query()["verbose"]; verbose {
			text(w, http.StatusOK, "[+]ping ok\nhealthz check passed\n")
			return
		}
		text(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("/healthz/ping", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok") // as in kube-proxy, no headers of Kubernetes components
	})
	return mux
}
