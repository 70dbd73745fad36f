package takeover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// serverName distinguishes this program's servers from kube-proxy's, which have the same pages.
const serverName = "kube-nftproxy"

// Named returns a handler whose answers have the header Server with this program's name.
func Named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", serverName)
		h.ServeHTTP(w, r)
	})
}

// Default addresses of kube-proxy's servers.
const (
	defaultMetrics = "127.0.0.1:10249"
	defaultHealth  = "127.0.0.1:10256"
)

// askTimeout is the time within which a kube-proxy must answer.
const askTimeout = time.Second

// ports returns the addresses at which a kube-proxy may answer: kube-proxy's default address, and this program's
// configured address. For an unspecified address such as 0.0.0.0, it returns loopback.
func ports(configured, fallback string) []string {
	list := []string{fallback}
	if at, err := netip.ParseAddrPort(configured); err == nil {
		if at.Addr().IsUnspecified() {
			at = netip.AddrPortFrom(inet.Localhost[inet.FamilyOf(at.Addr())], at.Port())
		}
		if !slices.Contains(list, at.String()) {
			list = append(list, at.String())
		}
	}
	return list
}

// Rival describes a kube-proxy that runs, or may run, on this node.
type Rival struct {
	// Page is the address at which one answered, or "". Mode is its mode, or "" if only its health port answered.
	Page, Mode string
	// Unknown, if not nil, is the reason why one may run: it may be slow, or this process cannot connect.
	Unknown error
}

// Possible reports whether a kube-proxy runs or may run.
func (r Rival) Possible() bool { return r.Page != "" || r.Unknown != nil }

// FindRival queries the ports of a kube-proxy: its default ports, and those that are configured for this program. It
// takes at most a second for each of up to four addresses.
func FindRival(ctx context.Context, metrics, health string) (r Rival) {
	for _, at := range ports(metrics, defaultMetrics) {
		status, body, err := ask(ctx, at, "/proxyMode")
		known := []string{"iptables", "ipvs", "nftables"}
		if mode := strings.TrimSpace(body); status == http.StatusOK && slices.Contains(known, mode) {
			return Rival{Page: "http://" + at + "/proxyMode", Mode: mode}
		}
		r.Unknown = errors.Join(r.Unknown, err)
	}
	for _, at := range ports(health, defaultHealth) {
		var answer struct{ LastUpdated, CurrentTime string }
		_, body, err := ask(ctx, at, "/healthz")
		if json.Unmarshal([]byte(body), &answer) == nil && answer.LastUpdated != "" && answer.CurrentTime != "" {
			return Rival{Page: "http://" + at + "/healthz"}
		}
		r.Unknown = errors.Join(r.Unknown, err)
	}
	return r
}

// NodeName returns the name of the Node in the configuration of a kube-proxy that answers, or "" if the kube-proxy
// uses the name of the host.
func (r Rival) NodeName(ctx context.Context) string {
	at, found := strings.CutSuffix(strings.TrimPrefix(r.Page, "http://"), "/proxyMode")
	if !found {
		return "" // its port for metrics, which also serves the configuration, is unknown
	}
	var configz struct {
		KubeProxy struct{ HostnameOverride string } `json:"kubeproxy.config.k8s.io"`
	}
	_, body, _ := ask(ctx, at, "/configz") // without an answer, the body is empty
	_ = json.Unmarshal([]byte(body), &configz)
	return configz.KubeProxy.HostnameOverride
}

// Remedy returns the smallest change after which only one proxy serves a node, and the side effects of this change.
func Remedy(node string) (fix, affects string) {
	return fmt.Sprintf("choose one proxy for node %[1]s. To list its pods with their images: kubectl -n kube-system "+
			"get pods --field-selector spec.nodeName=%[1]s -o "+
			"custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[*].image. If the DaemonSet kube-proxy has the "+
			"node affinity of deploy/canary/kube-proxy.yaml, this keeps it off the node: kubectl label node %[1]s "+
			"service-proxy=kube-nftproxy", node),
		fmt.Sprintf("only node %s: its pod of kube-proxy exits, and connections continue. Adding the affinity "+
			"restarts the pods of kube-proxy on other nodes once; their rules stay in force meanwhile", node)
}

// ask requests a page, from the network namespace of the calling thread. A page of this program counts as missing.
// ask returns an error if it is uncertain whether the page exists.
func ask(ctx context.Context, at, path string) (status int, body string, unknown error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return 0, "", uncertain(at, err)
	}
	defer func() { _ = conn.Close() }()
	end, _ := ctx.Deadline()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, nil)
	if err == nil {
		err = errors.Join(conn.SetDeadline(end), request.Write(conn))
	}
	if err != nil {
		return 0, "", uncertain(at, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return 0, "", uncertain(at, err)
	}
	defer response.Body.Close()
	const longest = 1 << 16
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err != nil || response.Header.Get("Server") == serverName {
		return 0, "", uncertain(at, err)
	}
	return response.StatusCode, string(text), nil
}

// uncertain returns an error if a kube-proxy may run although a request failed: after a timeout, or without files or
// memory for the request.
func uncertain(at string, err error) error {
	var timed net.Error
	if errors.As(err, &timed) && timed.Timeout() {
		return fmt.Errorf("check for a running kube-proxy: %s does not answer within %v", at, askTimeout)
	}
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, lack) {
			return fmt.Errorf("check for a running kube-proxy: %w", err)
		}
	}
	return nil
}
