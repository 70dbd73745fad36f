//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestAPIServerFailover kills two API servers by turns, and changes a Service on the one that is left.
func TestAPIServerFailover(t *testing.T) {
	w := ownWorld(t, lab.Config{Pods: 3})
	w.serve(w.Pods[0], w.Pods[1])
	other, err := w.api.AddServer(t.Context())
	must(t, err)
	defer other.Stop()
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	to := w.clusterIPs("web")[0]
	both := "https://" + w.api.Server().String() + ",https://" + other.Server().String()
	listing := filepath.Join(w.dir, "both.kubeconfig")
	text := mustRead(t, w.kubeconfig())
	text = strings.ReplaceAll(text, "https://"+w.api.Server().String(), both)
	must(t, os.WriteFile(listing, []byte(text), 0o600))
	for name, flags := range map[string][]string{
		"flag": {"--master=" + both}, "kubeconfig": {"--kubeconfig=" + listing},
	} {
		t.Run(name, func(t *testing.T) {
			d := w.start(flags...)
			defer d.Kill()
			eventually(t, patience, func() error { return synced(d) })
			serve := func(c *cluster.Cluster, pod *lab.Host, servers string) {
				t.Helper()
				must(t, c.Apply(t.Context(), slice("web", "web-1", endpoint(pod.IPv4))))
				eventually(t, patience, func() error { return reached(t.Context(), w.Pods[2], inet.TCP, to, pod.Name) })
				if failed := len(d.lines("API server failed")); failed != strings.Count(servers, "x") {
					t.Errorf("the log has %d failures of an API server, want %q:\n%s", failed, servers, d.LogTail(20))
				}
			}
			serve(w.api, w.Pods[1], "")
			w.api.KillServer()
			serve(other, w.Pods[0], "x")
			must(t, w.api.RestartServer(t.Context()))
			other.Stop()
			serve(w.api, w.Pods[1], "xx")
			must(t, other.RestartServer(t.Context()))
		})
	}
}
