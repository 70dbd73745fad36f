//go:build e2e || twin

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// patience is the longest wait for events that normally take milliseconds: the processors are often busy.
const patience = lab.Patience

// daemon is the program under test.
type daemon struct {
	*proxy.Program
	t *testing.T
}

// kubeconfig writes the file of user system:kube-proxy.
func (w *world) kubeconfig() string {
	w.Helper()
	path := filepath.Join(w.dir, "proxy.kubeconfig")
	must(w, w.api.Kubeconfig(path, false))
	return path
}

// start runs the program on the lab's node as a cluster's operator would.
func (w *world) start(flags ...string) *daemon {
	w.Helper()
	return w.startOn(w.Node, w.kubeconfig(), flags...)
}

// startOn runs the program on a host, and kills it at the end of the test.
func (w *world) startOn(h *lab.Host, kubeconfig string, flags ...string) *daemon {
	w.Helper()
	args := append([]string{
		"--kubeconfig", kubeconfig, "--hostname-override", nodeName,
		"--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-v", "2",
		"--control-socket=", // labs share the file system
	}, flags...)
	return run(w.T, proxy.Config{Host: h, Path: program, Args: args})
}

// run starts a program until the end of the test.
func run(t *testing.T, c proxy.Config) *daemon {
	t.Helper()
	return &daemon{proxy.ForTest(t, c), t}
}

// stop sends the first signal of systemd and the kubelet.
func (d *daemon) stop() {
	d.t.Helper()
	must(d.t, d.Signal(syscall.SIGTERM))
	if err := exits(d.t, d.Program); err != nil {
		d.t.Errorf("the program ended with %v after SIGTERM, want status 0", err)
	}
}

// read returns the program's log so far.
func (d *daemon) read() string {
	text, err := os.ReadFile(d.Log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// lines returns the lines of the log that contain all the words.
func (d *daemon) lines(words ...string) []string {
	var found []string
	for line := range strings.Lines(d.read()) {
		all := true
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// get requests a page from the program's HTTP ports.
func (d *daemon) get(url string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return d.Get(ctx, url)
}

// scrape reads /metrics.
func (d *daemon) scrape() (proxy.Samples, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return d.Metrics(ctx)
}

const (
	lastSync   = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	lastQueued = `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}`
)

// idle returns nil if the program has synced and no sync is pending.
func idle(m proxy.Samples) error {
	pending, _ := m.Sum("kubeproxy_sync_proxy_rules_endpoint_changes_pending")
	services, _ := m.Sum("kubeproxy_sync_proxy_rules_service_changes_pending")
	if m[lastSync] == 0 || m[lastSync] < m[lastQueued] || pending+services > 0 {
		return fmt.Errorf("not idle: last sync %.3f, last queued %.3f, pending %v", m[lastSync], m[lastQueued], pending+services)
	}
	return nil
}

// awaitIdle waits until the program has synced and no sync is pending. A change whose watch event has not arrived is not pending
// yet.
func (d *daemon) awaitIdle(within time.Duration) proxy.Samples {
	d.t.Helper()
	var m proxy.Samples
	eventually(d.t, within, func() (err error) {
		if m, err = d.scrape(); err != nil {
			return err
		}
		return idle(m)
	})
	return m
}

// memory calls Program.Memory.
func (d *daemon) memory(field string) float64 {
	d.t.Helper()
	mib, err := d.Memory(field)
	must(d.t, err)
	return mib
}

// nft runs nft on a host and returns its output.
func nft(t testing.TB, h *lab.Host, args ...string) string {
	t.Helper()
	return h.Run(t, "nft", args...)
}

// errors returns klog's error lines, and the lines of a panic.
func (d *daemon) errors() []string {
	var found []string
	for line := range strings.Lines(d.read()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "F") || strings.HasPrefix(line, "panic") {
			found = append(found, line)
		}
	}
	return found
}

// noErrors fails the test if the log has an error.
func (d *daemon) noErrors() {
	d.t.Helper()
	if bad := d.errors(); len(bad) > 0 {
		d.t.Errorf("errors in the log: %q", bad)
	}
}

// awaitLine waits until the log has a line with all the words.
func (d *daemon) awaitLine(words ...string) {
	d.t.Helper()
	eventually(d.t, patience, func() error {
		if len(d.lines(words...)) == 0 {
			return fmt.Errorf("no line with %q in the log, which ends with:\n%s", words, d.LogTail(5))
		}
		return nil
	})
}

// exits waits until a program exits, and returns an error for a status other than 0.
func exits(t testing.TB, p *proxy.Program) error {
	t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		t.Fatalf("%s continues", p)
	}
	return p.Wait()
}

// take listens on an IPv4 address of a host until it is freed.
func take(t testing.TB, h *lab.Host, address string) (free func()) {
	t.Helper()
	var taken net.Listener
	must(t, h.Do(func() (err error) {
		taken, err = net.Listen("tcp4", address)
		return err
	}))
	t.Cleanup(func() { _ = taken.Close() })
	return func() { _ = taken.Close() }
}
