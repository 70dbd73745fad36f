package main

import (
	"context"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
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

// proxy is one of the two programs. Only IPv4 is measured.
type proxy struct {
	Figures
	path string
	args []string
	host *lab.Host
	log  string

	running *program.Program
}

func kubeProxy(s settings, kubeconfig string) *proxy {
	return &proxy{Figures: Figures{Name: "kube-proxy", Version: "v1.36.3"}, path: s.theirs, args: []string{
		"--proxy-mode=nftables", "--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--cluster-cidr=10.128.0.0/9",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}}
}

func kubeNftproxy(s settings, kubeconfig string) *proxy {
	return &proxy{Figures: Figures{Name: "kube-nftproxy"}, path: s.ours, args: []string{
		"--proxy-mode=nftables", "--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--cluster-cidr=10.128.0.0/9",
	}}
}

// measure runs the proxy through everything, and removes its rules.
func (p *proxy) measure(ctx context.Context, w *world) error {
	say("%s: start", p.Name)
	took, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer func() { p.running.Kill() }()
	p.Start = took
	first, err := p.running.Metrics(ctx)
	if err != nil {
		return err
	}
	p.FirstSync = syncTime(first)
	if err := p.measureChanges(ctx, w); err != nil {
		return err
	}
	if err := p.measureMemory(); err != nil {
		return err
	}
	say("%s: restart", p.Name)
	p.running.Kill()
	if p.Restart, err = p.start(ctx); err != nil {
		return err
	}
	p.running.Kill()
	return p.host.Command(ctx, p.path, "--cleanup").Run()
}

// measureChanges replaces one endpoint after the other, each when the proxy has been quiet for a while.
func (p *proxy) measureChanges(ctx context.Context, w *world) error {
	var syncs, follows []time.Duration
	for i := range w.changes {
		const quiet = 2 * time.Second // longer than kube-proxy's least time between two syncs
		time.Sleep(quiet)
		before, err := p.running.Metrics(ctx)
		if err != nil {
			return err
		}
		spent, last := syncTime(before), before.LastSync(model.IPv4)
		asked := time.Now()
		if err := w.change(ctx); err != nil {
			return err
		}
		synced, err := p.running.AwaitSync(ctx, last, model.IPv4)
		if err != nil {
			return err
		}
		after, err := p.running.Metrics(ctx)
		if err != nil {
			return err
		}
		total := syncTime(after)
		syncs, follows = append(syncs, total-spent), append(follows, synced.Sub(asked))
		say("%s: change %d: sync %v, from the call of the API %v", p.Name, i+1, round(total-spent), round(synced.Sub(asked)))
	}
	p.Change, p.Follow = median(syncs), median(follows)
	return nil
}

// start runs the program and waits until it has synced.
func (p *proxy) start(ctx context.Context) (took time.Duration, err error) {
	p.running, err = program.Start(ctx, program.Config{Host: p.host, Path: p.path, Args: p.args, Log: p.log})
	if err != nil {
		return 0, err
	}
	synced, err := p.running.AwaitSync(ctx, time.Time{}, model.IPv4)
	if err != nil {
		p.running.Kill()
	}
	return synced.Sub(p.running.Started()), err
}

// syncTime is the time spent in all syncs so far.
func syncTime(m program.Samples) time.Duration {
	return time.Duration(m[`kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"}`] * float64(time.Second))
}

// measureMemory notes the program's peak and present resident memory.
func (p *proxy) measureMemory() error {
	for field, into := range map[string]*int{"VmHWM": &p.PeakMB, "VmRSS": &p.SteadyMB} {
		mib, err := p.running.Memory(field)
		if err != nil {
			return err
		}
		*into = int(mib)
	}
	return nil
}
