package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// The programs.
const (
	kubeProxyNftables = "kube-proxy nftables"
	kubeProxyIptables = "kube-proxy iptables"
	kubeNftproxy      = "kube-nftproxy"
)

// proxy is one of the programs. All measurements but those of packets are of IPv4.
type proxy struct {
	name, path string
	args       []string
	host       *lab.Host
	log        string
	// family is that of the Services.
	family inet.Family
	// quiet is the idle time after which a change is synced at once.
	quiet time.Duration
	// rest is the idle time between two scrapes.
	rest time.Duration

	running *program.Program
	// ruleset reads the kernel's nftables on the host.
	ruleset *nft.Conn
	// scrapes counts the scrapes by metrics.
	scrapes int
}

// rest exceeds the time of a scrape, which uses a processor for some milliseconds, and would be measured.
const rest = 20 * time.Millisecond

func newProxy(name string, s settings, family inet.Family, kubeconfig string, host *lab.Host, log string) *proxy {
	p := &proxy{name: name, host: host, family: family, log: log, path: s.theirs, quiet: 1500 * time.Millisecond, rest: rest}
	p.args = program.Flags(kubeconfig, nodeName, "--v=0", // log lines cost time
		"--cluster-cidr="+clusterCIDRs[family])
	mode := "nftables"
	switch name {
	case kubeProxyIptables:
		mode = "iptables"
	case kubeNftproxy:
		p.path, p.quiet = s.ours, 150*time.Millisecond
	}
	if s.emulated {
		p.rest = emulatedRest
	}
	p.args = append(p.args, "--proxy-mode="+mode)
	return p
}

// measure makes all measurements of the proxy, and removes its rules.
func (p *proxy) measure(ctx context.Context, w *world, e effort, f *Figures) error {
	if err := wait(ctx, e.calm); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return err
	}
	defer p.ruleset.Close() //nolint:errcheck // read only
	defer p.kill()
	if !e.onlyPackets {
		if err := p.measureRules(ctx, w, e, f); err != nil {
			return err
		}
	}
	if err := p.measurePlacements(ctx, w, e, f); err != nil {
		return err
	}
	return p.cleanUp(ctx)
}

// open opens the ruleset of the host.
func (p *proxy) open() error {
	return p.host.Do(func() (err error) { p.ruleset, err = nft.Open(); return err })
}

// measureRules makes all measurements but those of packets. It starts the program.
func (p *proxy) measureRules(ctx context.Context, w *world, e effort, f *Figures) error {
	log.Printf("%s, %s: start", w.size, p.name)
	if err := p.measureStart(ctx, f); err != nil {
		return err
	}
	for range e.again {
		if err := p.cleanUp(ctx); err != nil {
			return err
		}
		if err := p.measureStart(ctx, f); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context, *world, effort, *Figures) error{
		p.measureIdle, p.measureChanges, p.measureBurst, p.measureRolling, p.measureSpread, p.measureMemory, p.measureRestart,
		p.measureBeside,
	} {
		if err := step(ctx, w, e, f); err != nil {
			return err
		}
	}
	return measureConnections(ctx, w, e, f)
}

// measurePlacements measures packets with rules that are created again each time.
func (p *proxy) measurePlacements(ctx context.Context, w *world, e effort, f *Figures) error {
	for n := range e.placements {
		if n > 0 || p.running == nil {
			if err := p.cleanUp(ctx); err != nil {
				return err
			}
			if _, err := p.start(ctx); err != nil {
				return err
			}
		}
		if err := measurePackets(ctx, w, e.packets/e.placements, f); err != nil {
			return err
		}
	}
	return nil
}

// kill stops the program, if it was started.
func (p *proxy) kill() {
	if p.running != nil {
		p.running.Kill()
	}
}

// cleanUp stops the program and removes its rules.
func (p *proxy) cleanUp(ctx context.Context) error {
	p.kill()
	return p.host.Command(ctx, p.path, "--cleanup").Run()
}

// start runs the program and waits for its first sync.
func (p *proxy) start(ctx context.Context) (took time.Duration, err error) {
	p.running, err = program.Start(ctx, program.Config{Host: p.host, Path: p.path, Args: p.args, Log: p.log, Rest: p.rest})
	if err != nil {
		return 0, err
	}
	synced, err := p.running.AwaitSync(ctx, time.Time{}, p.family)
	if err != nil {
		p.running.Kill()
	}
	return synced.Sub(p.running.Started()), err
}

// measureStart measures the start of the program.
func (p *proxy) measureStart(ctx context.Context, f *Figures) error {
	took, err := p.start(ctx)
	if err != nil {
		return err
	}
	f.add(startToProgrammed, took.Seconds())
	if err := p.measureFirstSync(ctx, f); err != nil {
		p.running.Kill()
		return err
	}
	return nil
}

// measureFirstSync measures the first sync. kube-proxy updates its metric shortly after the sync.
func (p *proxy) measureFirstSync(ctx context.Context, f *Figures) error {
	var spent time.Duration
	err := p.running.Await(ctx, 10*time.Millisecond, "the first sync", func(ctx context.Context) error {
		m, err := p.metrics(ctx)
		if spent = spentOf(m); err == nil && spent == 0 {
			err = errors.New("not counted yet")
		}
		return err
	})
	f.add(firstSync, spent.Seconds())
	return err
}

// metrics reads the program's metrics.
func (p *proxy) metrics(ctx context.Context) (program.Samples, error) {
	p.scrapes++
	return p.running.Metrics(ctx)
}

// spentOf returns the time spent in all syncs so far.
func spentOf(m program.Samples) time.Duration {
	return time.Duration(m[`kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"}`] * float64(time.Second))
}

func (p *proxy) measureRestart(ctx context.Context, w *world, e effort, f *Figures) error {
	log.Printf("%s, %s: restart", w.size, p.name)
	for range 1 + e.again {
		p.running.Kill()
		took, err := p.start(ctx)
		if err != nil {
			return err
		}
		f.add(restart, took.Seconds())
	}
	return nil
}

// measureMemory measures the program's peak resident memory and its present memory, without its child processes.
func (p *proxy) measureMemory(_ context.Context, _ *world, _ effort, f *Figures) error {
	peak, err := p.running.Memory("VmHWM")
	if err != nil {
		return err
	}
	f.add(peakMemory, peak)
	for field, into := range map[string]quantity{"Pss": pssMemory, "Anonymous": anonymousMemory} {
		mib, err := p.running.Rollup(field)
		if err != nil {
			return err
		}
		f.add(into, mib)
	}
	return nil
}

func (p *proxy) cpu() (time.Duration, error) { return cpuOf(p.running.Pid()) }

// cpuOf returns the processor time of a process, in nanoseconds, and of its child processes that have ended, in ticks.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const cutime, cstime, ticksPerSecond = 13, 14, 100
	var ticks int
	for _, v := range fields[cutime : cstime+1] {
		n, err := strconv.Atoi(v)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		ticks += n
	}
	const processClock = 2 // CPUCLOCK_SCHED of a process, see clock_getcpuclockid(3)
	var own unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &own); err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return time.Duration(own.Nano()) + time.Duration(ticks)*time.Second/ticksPerSecond, nil
}

// cpuOf returns the processor time used while f runs.
func (p *proxy) cpuOf(f func() error) (time.Duration, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return after - before, err
}

// measureIdle measures the share of a processor used without changes.
func (p *proxy) measureIdle(ctx context.Context, w *world, e effort, f *Figures) error {
	if e.idle == 0 {
		return nil
	}
	log.Printf("%s, %s: idle", w.size, p.name)
	wait(ctx, 3*time.Second)
	spent, err := p.cpuOf(func() error { return wait(ctx, e.idle) })
	f.add(idleCPU, spent.Seconds()/e.idle.Seconds())
	return err
}

// wait waits for a fixed time.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
