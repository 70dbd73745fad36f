package health

import (
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// ready reports whether the proxy has completed its first sync, and no sync is overdue. A proxy that cannot read from
// its source stays ready: it serves the last known state.
func (h *Health) ready(now time.Time) bool { return h.serves && h.healthy(now) }

// readyz answers /readyz with text: "ok", or one line for each reason. The reasons name addresses and users, so only
// clients on this node get them.
func (h *Health) readyz(w http.ResponseWriter, r *http.Request) {
	if h.Account().Ready {
		text(w, http.StatusOK, "ok\n")
		return
	}
	lines := []string{"not ready; query 127.0.0.1 on the node for the reason"}
	if local(r) {
		lines = append([]string{"not ready"}, h.config.Reasons(r.Context())...)
	}
	text(w, http.StatusServiceUnavailable, strings.Join(lines, "\n")+"\n")
}

// local reports whether a request is from this node's loopback addresses.
func local(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().IsLoopback()
}
