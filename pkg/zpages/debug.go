package zpages

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
)

// Debug adds profiles below /debug/pprof, and /debug/flags/v, by which the log's verbosity is set (kube-proxy: --profiling).
func Debug(mux *http.ServeMux, setVerbosity func(string) error) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags/v", func(w http.ResponseWriter, r *http.Request) { verbosity(w, r, setVerbosity) })
	mux.HandleFunc("/debug/flags", func(w http.ResponseWriter, _ *http.Request) { send(w, []byte("/debug/flags/v\n")) })
}

// verbosity takes a number as the body of a PUT.
func verbosity(w http.ResponseWriter, r *http.Request, set func(string) error) {
	if r.Method != http.MethodPut {
		http.Error(w, "unsupported http method", http.StatusNotAcceptable)
		return
	}
	const most = 32
	body, err := io.ReadAll(io.LimitReader(r.Body, most))
	value := strings.TrimSpace(string(body))
	if err == nil {
		err = set(value)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("failed set klog.logging.verbosity %s: %v", value, err), http.StatusBadRequest)
		return
	}
	send(w, []byte("successfully set klog.logging.verbosity to "+value))
}
