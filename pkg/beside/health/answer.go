package health

import (
	"encoding/json"
	"io"
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
	mux.HandleFunc("/healthz", h.handle(true))
	mux.HandleFunc("/livez", h.handle(false))
	mux.HandleFunc("/readyz", h.readyz)
	return mux
}

// handle returns the handler of /healthz, which includes the eligibility of the node, or of /livez.
func (h *Health) handle(withNode bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, ok := h.answer(withNode)
		code := http.StatusServiceUnavailable
		if ok {
			code, a.LastUpdated = http.StatusOK, a.CurrentTime
		}
		body, err := json.Marshal(a)
		if err != nil {
			code, body = http.StatusInternalServerError, nil // a year outside 0 to 9999
		}
		send(w, "application/json", code, string(body))
		h.config.Answered(r.URL.Path, code)
	}
}

// answer returns an answer, and whether the proxy is healthy, and with the node also the node eligible.
func (h *Health) answer(withNode bool) (a answer, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.config.Now()
	a = answer{LastUpdated: h.updated, CurrentTime: now, Healthy: h.healthy(now), Status: map[string]familyStatus{}}
	if !h.updated.IsZero() {
		for _, f := range h.config.Families {
			a.Status[f.String()] = familyStatus{LastUpdated: h.updated, Healthy: a.Healthy}
		}
	}
	if !withNode {
		return a, a.Healthy
	}
	eligible := h.eligible
	a.NodeEligible = &eligible
	return a, a.Healthy && eligible
}

// send sends a body with the headers of Kubernetes components.
func send(w http.ResponseWriter, contentType string, code int, body string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // an error means that the client has closed the connection
}

// text sends plain text.
func text(w http.ResponseWriter, code int, body string) {
	send(w, "text/plain; charset=utf-8", code, body)
}
