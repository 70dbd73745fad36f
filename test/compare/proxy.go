package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	ours "github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Figures are what was measured of one proxy; times are in nanoseconds.
type Figures struct {
	Name      string        `json:"name"`
	Version   string        `json:"version"`
	Start     time.Duration `json:"startToProgrammed"`
	FirstSync time.Duration `json:"firstSync"`
	Change    time.Duration `json:"oneEndpointSyncMedian"`
	Follow    time.Duration `json:"oneEndpointAPIToKernelMedian"`
	Restart   time.Duration `json:"restartUnchanged"`
	PeakMB    int           `json:"peakRSSMB"`
	SteadyMB  int           `json:"steadyRSSMB"`
}

// proxy is one of the two programs. Both serve the same metrics.
type proxy struct {
	Figures
	program string
	args    []string
	host    *lab.Host
	log     string

	cmd    *lab.Cmd
	client *http.Client
	done   chan struct{}
}

func kubeProxy(s settings, kubeconfig string) *proxy {
	return &proxy{Figures: Figures{Name: "kube-proxy", Version: "v1.36.3"}, program: s.theirs, args: []string{
		"--proxy-mode=nftables", "--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--cluster-cidr=10.128.0.0/9",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}}
}

func kubeNftproxy(s settings, kubeconfig string) *proxy {
	return &proxy{Figures: Figures{Name: "kube-nftproxy"}, program: s.ours, args: []string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--cluster-cidr=10.128.0.0/9",
	}}
}

// measure runs the proxy through everything, and removes its rules.
func (p *proxy) measure(ctx context.Context, w *world) error {
	say("%s: start", p.Name)
	took, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	p.Start = took
	if p.FirstSync, err = p.syncTime(ctx); err != nil {
		return err
	}
	if err := p.measureChanges(ctx, w); err != nil {
		return err
	}
	if p.PeakMB, p.SteadyMB, err = p.memory(); err != nil {
		return err
	}
	say("%s: restart", p.Name)
	p.stop()
	if p.Restart, err = p.start(ctx); err != nil {
		return err
	}
	p.stop()
	return p.host.Command(ctx, p.program, "--cleanup").Run()
}

// measureChanges replaces one endpoint after the other, each when the proxy has been quiet for a while.
func (p *proxy) measureChanges(ctx context.Context, w *world) error {
	var syncs, follows []time.Duration
	for i := range w.changes {
		const quiet = 2 * time.Second // longer than kube-proxy's least time between two syncs
		time.Sleep(quiet)
		spent, err := p.syncTime(ctx)
		if err != nil {
			return err
		}
		last, err := p.lastSync(ctx)
		if err != nil {
			return err
		}
		asked := time.Now()
		if err := w.change(ctx); err != nil {
			return err
		}
		synced, err := p.awaitSync(ctx, last)
		if err != nil {
			return err
		}
		total, err := p.syncTime(ctx)
		if err != nil {
			return err
		}
		syncs, follows = append(syncs, total-spent), append(follows, synced.Sub(asked))
		say("%s: change %d: sync %v, from the call of the API %v", p.Name, i+1, round(total-spent), round(synced.Sub(asked)))
	}
	p.Change, p.Follow = median(syncs), median(follows)
	return nil
}

// start runs the program and waits until it has synced.
func (p *proxy) start(ctx context.Context) (time.Duration, error) {
	out, err := os.Create(p.log)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	p.cmd = p.host.Command(ctx, p.program, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return p.host.Dial(ctx, ours.TCP, netip.MustParseAddrPort(address))
		},
	}}
	started := time.Now()
	if err := p.cmd.Start(); err != nil {
		return 0, err
	}
	p.done = make(chan struct{})
	go func(cmd *lab.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
	synced, err := p.awaitSync(ctx, time.Time{})
	return synced.Sub(started), err
}

func (p *proxy) stop() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// awaitSync returns the time of the first sync after the given one.
func (p *proxy) awaitSync(ctx context.Context, after time.Time) (time.Time, error) {
	for {
		at, err := p.lastSync(ctx)
		if err == nil && at.After(after) && at.Unix() > 0 {
			return at, nil
		}
		select {
		case <-p.done:
			log, _ := os.ReadFile(p.log)
			return at, fmt.Errorf("it ended: %s", log[max(0, len(log)-2000):])
		case <-ctx.Done():
			return at, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// lastSync returns the time of the last successful sync of IPv4.
func (p *proxy) lastSync(ctx context.Context) (time.Time, error) {
	m, err := p.metric(ctx, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
	if err != nil || m == nil {
		return time.Time{}, err
	}
	return time.Unix(0, int64(m.GetGauge().GetValue()*1e9)), nil
}

// syncTime returns the time spent in all syncs of IPv4 so far.
func (p *proxy) syncTime(ctx context.Context) (time.Duration, error) {
	m, err := p.metric(ctx, "kubeproxy_sync_proxy_rules_duration_seconds")
	if err != nil || m == nil {
		return 0, err
	}
	return time.Duration(m.GetHistogram().GetSampleSum() * 1e9), nil
}

// metric returns the metric of IPv4, or nil if it isn't there yet.
func (p *proxy) metric(ctx context.Context, name string) (*dto.Metric, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, err
	}
	for _, m := range families[name].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "ip_family" && label.GetValue() == "IPv4" {
				return m, nil
			}
		}
	}
	return nil, nil
}

// memory returns the program's peak and present resident memory in MB.
func (p *proxy) memory() (peak, steady int, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	read := func(name string) int {
		_, rest, _ := bytes.Cut(status, []byte(name+":"))
		fields := strings.Fields(string(rest))
		kb, _ := strconv.Atoi(fields[0])
		return kb / 1024
	}
	return read("VmHWM"), read("VmRSS"), nil
}
