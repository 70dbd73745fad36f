//go:build kernels

package kernels

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

const clockService = `apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", protocol: TCP, port: 8080}]
endpoints: [{addresses: ["%s"], nodeName: node-1, conditions: {ready: true}}]
`

// TestClockJumps sets the machine's clock while the program runs: changes are served, an emptied table is repaired and the health is
// good as soon as if it had not been set.
func TestClockJumps(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 3})
	for _, pod := range l.Pods[:2] {
		if _, err := pod.Serve(inet.TCP, 8080); err != nil {
			t.Fatal(err)
		}
	}
	folder := t.TempDir()
	serveBy := func(pod *lab.Host) {
		t.Helper()
		file := filepath.Join(folder, "web.yaml")
		write(t, file+".new", fmt.Sprintf(clockService, pod.IPv4))
		lab.Must(t, os.Rename(file+".new", file))
	}
	serveBy(l.Pods[0])
	p := program.ForTest(t, program.Config{
		Host: l.Node, Path: "./kube-nftproxy", Args: []string{"--manifests", folder, "--hostname-override", "node-1", "--control-socket="},
	})
	reached := func(server string) error {
		counts, err := l.Pods[2].Spread(t.Context(), inet.TCP, netip.MustParseAddrPort("10.96.0.10:80"), 1, lab.Options{})
		if err == nil && !maps.Equal(counts, map[string]int{server: 1}) {
			err = fmt.Errorf("the Service: %v, want %s", counts, server)
		}
		return err
	}
	await(t, func() error { return reached("pod-0") })

	const day = 24 * time.Hour
	for i, jump := range []time.Duration{time.Hour, -2 * time.Hour, 400 * day, -800 * day, 399 * day, -3 * time.Second, 90 * time.Second} {
		jumpBy(t, jump)
		next := (i + 1) % 2
		serveBy(l.Pods[next])
		await(t, func() error { return reached(fmt.Sprintf("pod-%d", next)) })
		if out, err := l.Node.Command(t.Context(), "nft", "flush chain ip "+plan.TableName+" services").CombinedOutput(); err != nil {
			t.Fatalf("flush: %v: %s", err, out)
		}
		await(t, func() error { return reached(fmt.Sprintf("pod-%d", next)) })
		await(t, func() error {
			status, body, err := p.Get(t.Context(), "http://127.0.0.1:10256/healthz")
			if err == nil && status != 200 {
				err = fmt.Errorf("/healthz answers %d: %s", status, body)
			}
			return err
		})
		t.Logf("a jump by %v: %v", jump, time.Now().UTC().Format(time.DateTime))
	}
}

// jumpBy sets the machine's clock.
func jumpBy(t *testing.T, by time.Duration) {
	t.Helper()
	var now unix.Timespec
	lab.Must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &now))
	then := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &then); err != nil {
		t.Fatalf("set the clock: %v", err)
	}
}

// await asks until there is no error, for no longer than one would wait if the clock had not been set; time.Since asks another clock.
func await(t *testing.T, f func() error) {
	t.Helper()
	lab.Eventually(t, 20*time.Second, f)
}
