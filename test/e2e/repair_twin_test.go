//go:build twin

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestTwinRepair deletes both programs' tables, and empties the map of their Services. kube-nftproxy repairs this within a
// second. kube-proxy, which gets no event, has not repaired it ten seconds later. Its next full sync is due after an hour.
func TestTwinRepair(t *testing.T) {
	const broken = 10 * time.Second
	for _, path := range bothPrograms(t) {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, lab.Config{Pods: 2})
			w.serve(w.Pods[0])
			w.apply(service("web", corev1.IPv4Protocol))
			w.apply(slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
			start := func() *proxy.Program {
				args := proxy.Flags(w.kubeconfig(), nodeName, "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56")
				return proxy.ForTest(t, proxy.Config{Host: w.Node, Path: path, Args: args})
			}
			running := start()
			to := w.clusterIPs("web")[0]
			table, services := "kube-nftproxy", "singles"
			if name == "kube-proxy" {
				table, services = "kube-proxy", "service-ips"
			}
			for _, command := range []string{"flush map ip " + table + " " + services, "delete table ip " + table} {
				reach(t, w.Pods[1], to, "pod-0")
				nft(t, w.Node, command)
				begin := time.Now()
				if name != "kube-proxy" {
					eventually(t, time.Second, func() error { return reached(t.Context(), w.Pods[1], inet.TCP, to, "pod-0") })
					t.Logf("%s: repaired after %v", command, time.Since(begin).Round(time.Millisecond))
					continue
				}
				never(t, broken, func() error { return reached(t.Context(), w.Pods[1], inet.TCP, to) })
				t.Logf("%s: still broken after %v", command, time.Since(begin).Round(time.Second))
				// After a restart it writes everything.
				running.Kill()
				running = start()
			}
		})
	}
}
