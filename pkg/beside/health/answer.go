package health

import (
	"encoding/json"
	"net/http"
	"time"
)

// answer is the body of /healthz and /livez, with the same fields as kube-proxy's. Cloud load balancers and e2e tests
// read lastUpdated.
type answer struct {
	// LastUpdated is the time of the answer if the status is 200: the rules are up to date. With any other status, it
	// is the time of the last successful sync, or of the last call of Updated.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is nil, and omitted, in the answer to /livez.
	NodeEligible *bool `json:"nodeEligible,omitempty"`
	Healthy      bool  `json:"healthy"`
	// Status has the health of each IP family. It is empty, and omitted, before the sync loop starts.
	Status map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler returns the handler of the health port. The status of /healthz is 200 if the proxy is healthy and the node
// eligible, and that of /livez if the proxy is healthy. The status of /readyz is 200 if the first sync has succeeded
// and the proxy is healthy. Otherwise, the status is 503. All methods are accepted. Any other path has status 404.
//
// Liveness probes should use /livez. With /healthz, the kubelet would restart the proxy of a node that the autoscaler
// is about to remove. Readiness probes should use /readyz: with /livez, a roll-out would continue although the new
// proxies do not reach the API server.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", handle(h.healthz, h.config.Counter.HealthzAnswered))
	mux.Handle("/livez", handle(h.livez, h.config.Counter.LivezAnswered))
	mux.HandleFunc("/readyz", h.readyz)
	return mux
}

// handle returns the handler of one path. ask returns the answer; ok is true for status 200.
func handle(ask func() (a answer, ok bool), count func(code int)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		a, ok := ask()
		count(reply(w, a, ok))
	}
}

// healthz returns the answer of /healthz, and whether proxy and node are healthy.
func (h *Health) healthz() (a answer, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a = h.answer()
	nodeEligible := h.eligible
	a.NodeEligible = &nodeEligible
	return a, a.Healthy && nodeEligible
}

// livez returns the answer of /livez, and whether the proxy is healthy.
func (h *Health) livez() (a answer, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a = h.answer()
	return a, a.Healthy
}

// answer returns the common fields of both answers.
func (h *Health) answer() answer {
	now := h.config.Now()
	a := answer{LastUpdated: h.updated, CurrentTime: now, Healthy: h.healthy(now), Status: map[string]familyStatus{}}
	if h.updated.IsZero() {
		return a
	}
	for _, f := range h.config.Families {
		a.Status[f.String()] = familyStatus{LastUpdated: h.updated, Healthy: a.Healthy}
	}
	return a
}

// reply sends an answer and returns its status code.
func reply(w http.ResponseWriter, a answer, ok bool) (code int) {
	code = http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		a.LastUpdated = a.CurrentTime
	}
	body, err := json.Marshal(a)
	if err != nil {
		code, body = http.StatusInternalServerError, nil // a year outside 0 to 9999
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client has closed the connection
	return code
}
