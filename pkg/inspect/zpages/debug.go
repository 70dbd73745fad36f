package zpages

import (
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
)

// Debug adds profiles below /debug/pprof, and /debug/flags/v, which sets the log's verbosity (kube-proxy: --profiling).
func Debug(mux *http.ServeMux, setVerbosity func(string) error) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags/v", func(w http.ResponseWriter, r *http.Request) { verbosity(w, r, setVerbosity) })
	list := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		send(w, []byte(flagsPage))
	}
	mux.HandleFunc("/debug/flags", list)
	mux.HandleFunc("/debug/flags/", list)
}

// flagsPage is kube-proxy's list of the flags that can be set, byte for byte.
const flagsPage = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\n" +
	"flags:<br>\n<table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n"

// verbosity sets the verbosity to the number in the body of a PUT.
func verbosity(w http.ResponseWriter, r *http.Request, set func(string) error) {
	if r.Method != http.MethodPut {
		plain(w, http.StatusNotAcceptable, "unsupported http method")
		return
	}
	const most = 32
	body, err := io.ReadAll(io.LimitReader(r.Body, most))
	value := strings.TrimSpace(string(body))
	if err == nil {
		err = set(value)
	}
	if err != nil {
		plain(w, http.StatusBadRequest, err.Error())
		return
	}
	plain(w, http.StatusOK, "successfully set klog.logging.verbosity to "+value)
}

// plain sends one line with kube-proxy's headers.
func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	send(w, []byte(text+"\n"))
}
