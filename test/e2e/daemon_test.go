//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// patience is how long anything may take that normally takes milliseconds: both processors are often busy.
const patience = 20 * time.Second

// daemon is a running program under test.
type daemon struct {
	t       *testing.T
	host    *lab.Host
	cmd     *lab.Cmd
	started time.Time
	log     string
	client  *http.Client
	ended   chan struct{}
	err     error
}

// daemons numbers the logs.
var daemons atomic.Int32

// kubeconfig writes the file of user system:kube-proxy.
func (w *world) kubeconfig() string {
	w.Helper()
	path := filepath.Join(w.dir, "proxy.kubeconfig")
	if err := w.api.Kubeconfig(path, false); err != nil {
		w.Fatal(err)
	}
	return path
}

// start runs the program on the lab's node as a cluster's operator would.
func (w *world) start(flags ...string) *daemon {
	w.Helper()
	return w.startOn(w.Node, w.kubeconfig(), flags...)
}

// startOn runs the program on a host; it is killed at the end of the test.
func (w *world) startOn(h *lab.Host, kubeconfig string, flags ...string) *daemon {
	w.Helper()
	args := append([]string{
		"--kubeconfig", kubeconfig, "--hostname-override", nodeName,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-v", "2",
	}, flags...)
	d := &daemon{
		t: w.T, host: h, cmd: h.Command(context.WithoutCancel(w.Context()), program, args...), ended: make(chan struct{}),
		log: filepath.Join(w.dir, fmt.Sprintf("daemon-%d.log", daemons.Add(1))),
	}
	d.client = &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return h.Dial(ctx, model.TCP, netip.MustParseAddrPort(address))
		},
	}}
	out, err := os.Create(d.log)
	if err != nil {
		w.Fatal(err)
	}
	defer out.Close()
	d.cmd.Stdout, d.cmd.Stderr = out, out
	// The kernel reports the death of the thread that forked, so run keeps that one.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	running := make(chan error, 1)
	d.started = time.Now()
	go d.run(running)
	if err := <-running; err != nil {
		w.Fatal(err)
	}
	w.Cleanup(d.end)
	return d
}

// run starts the program and waits for it on one thread inside of the host.
func (d *daemon) run(running chan<- error) {
	defer close(d.ended)
	d.err = d.host.Do(func() error {
		err := d.cmd.Cmd.Start()
		running <- err
		if err != nil {
			return err
		}
		return d.cmd.Wait()
	})
}

// end kills the program at the end of the test and shows its log where the test has failed.
func (d *daemon) end() {
	d.kill()
	d.client.CloseIdleConnections()
	if d.t.Failed() {
		d.t.Logf("end of %s:\n%s", filepath.Base(d.log), tail(d.read(), 20))
	}
}

// kill is kill -9.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended by itself
	<-d.ended
}

// stop is what systemd and the kubelet do first.
func (d *daemon) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatalf("the program doesn't end %v after SIGTERM", patience)
	}
	if d.err != nil {
		d.t.Errorf("the program ended with %v after SIGTERM, want status 0", d.err)
	}
}

// read returns what the program has logged so far.
func (d *daemon) read() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func tail(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
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

// get asks one of the program's HTTP ports.
func (d *daemon) get(url string) (status int, body []byte, err error) {
	resp, err := d.client.Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// metrics are samples by their series, as in name{label="value"}.
type metrics map[string]float64

// sum adds up the series of a metric, whatever their labels.
func (m metrics) sum(name string) (sum float64, series int) {
	for key, value := range m {
		if key == name || strings.HasPrefix(key, name+"{") {
			sum += value
			series++
		}
	}
	return sum, series
}

// scrape reads /metrics.
func (d *daemon) scrape() (metrics, error) {
	status, body, err := d.get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("get /metrics: status %d: %s", status, body)
	}
	m := metrics{}
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if m[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, fmt.Errorf("parse metrics: %w", err)
		}
	}
	return m, nil
}

const (
	lastSync   = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	lastQueued = `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}`
)

// idle returns nil once the program has synced and nothing is owed.
func (m metrics) idle() error {
	pending, _ := m.sum("kubeproxy_sync_proxy_rules_endpoint_changes_pending")
	services, _ := m.sum("kubeproxy_sync_proxy_rules_service_changes_pending")
	if m[lastSync] == 0 || m[lastSync] < m[lastQueued] || pending+services > 0 {
		return fmt.Errorf("not idle: last sync %.3f, last queued %.3f, pending %v", m[lastSync], m[lastQueued], pending+services)
	}
	return nil
}

// awaitIdle waits until the program has synced and nothing is owed. A change whose watch event is still on its way is not
// owed yet.
func (d *daemon) awaitIdle(within time.Duration) metrics {
	d.t.Helper()
	var m metrics
	eventually(d.t, within, func() (err error) {
		if m, err = d.scrape(); err != nil {
			return err
		}
		return m.idle()
	})
	return m
}

// memory returns a value of /proc/PID/status, such as VmRSS, in MiB.
func (d *daemon) memory(field string) float64 {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				d.t.Fatal(err)
			}
			return kib / 1024
		}
	}
	d.t.Fatalf("no %s in /proc/PID/status", field)
	return 0
}

// nft runs nft inside of a host and returns what it says.
func nft(t testing.TB, h *lab.Host, args ...string) string {
	t.Helper()
	out, err := h.Command(t.Context(), "nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// errors returns the lines that klog calls errors, and those of a panic.
func (d *daemon) errors() []string {
	var found []string
	for line := range strings.Lines(d.read()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "F") || strings.HasPrefix(line, "panic") {
			found = append(found, line)
		}
	}
	return found
}
