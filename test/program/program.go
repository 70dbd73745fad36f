package program

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// metricsURL is where both programs serve their metrics unless flags say otherwise.
const metricsURL = "http://127.0.0.1:10249/metrics"

// pollInterval is the time between two looks at the metrics: a sync offers no event to wait for.
const pollInterval = 10 * time.Millisecond

// Config says what to run and where.
type Config struct {
	// Host is where the program runs: its sockets and its rules are in the host's namespace.
	Host *lab.Host
	// Path and Args are the program and its flags.
	Path string
	Args []string
	// Env are variables, as in name=value, beside those of this process, of which they replace those with their names.
	Env []string
	// Log is the file to which the program's output is appended.
	Log string
	// Rest is the least time between two looks at what the program says about itself. Where it shares a slow processor with
	// whoever looks, each look delays what is awaited. Default: none.
	Rest time.Duration
	// OwnGroup gives the program a process group of its own, which keeps the terminal's Ctrl-C from it.
	OwnGroup bool
}

// Flags returns flags of either program on a node of an API server, and further flags. Without the flags of conntrack,
// the program would set sysctls of the whole machine.
func Flags(kubeconfig, node string, further ...string) []string {
	return append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + node, "--v=2",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}, further...)
}

// Program is a running program. Its methods may be called from several goroutines.
type Program struct {
	config  Config
	cmd     *lab.Cmd
	started time.Time
	client  *http.Client
	ended   chan struct{} // closed when it has ended and err is set
	err     error
}

// Start starts the program. It is killed when ctx ends, and by the kernel when this process ends in any way.
func Start(ctx context.Context, c Config) (*Program, error) {
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", filepath.Base(c.Path), err)
	}
	defer out.Close() //nolint:errcheck // the program has its own
	p := &Program{config: c, cmd: c.Host.Command(ctx, c.Path, c.Args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: c.OwnGroup}
	p.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true, DisableCompression: true}}
	p.started = time.Now()
	running := make(chan error, 2)
	go p.run(running)
	if err := <-running; err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	return p, nil
}

// run starts the program and waits for it on one thread inside of the host: Pdeathsig is about the death of the thread
// that forked (prctl(2)), so that one has to stay.
func (p *Program) run(running chan<- error) {
	defer close(p.ended)
	p.err = p.config.Host.Do(func() error {
		err := p.cmd.Cmd.Start()
		running <- err
		if err != nil {
			return err
		}
		return p.cmd.Wait()
	})
	running <- p.err // where Do could not enter the namespace
}

// dial connects to one of the program's ports.
func (p *Program) dial(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return p.config.Host.Dial(ctx, inet.TCP, to)
}

// String returns the program's name.
func (p *Program) String() string { return filepath.Base(p.config.Path) }

// Pid returns the process ID.
func (p *Program) Pid() int { return p.cmd.Process.Pid }

// Started returns the time just before the start.
func (p *Program) Started() time.Time { return p.started }

// Signal sends a signal. That the program has ended already is os.ErrProcessDone.
func (p *Program) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the program as kill -9 does, and waits until it is gone. It may have ended before.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill() // the only error is that it has ended
	<-p.ended
}

// Ended returns a channel that is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits for the program's end and returns how it ended, like exec.Cmd.Wait.
func (p *Program) Wait() error {
	<-p.ended
	return p.err
}

// Log returns the file with the program's output.
func (p *Program) Log() string { return p.config.Log }

// LogTail returns the last lines of the log, at most n.
func (p *Program) LogTail(n int) string {
	text, err := os.ReadFile(p.config.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

// Get asks one of the program's HTTP ports, by an address inside of its host.
func (p *Program) Get(ctx context.Context, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// Memory returns a value of /proc/PID/status, such as VmRSS, in MiB.
func (p *Program) Memory(field string) (mib float64, err error) { return MemoryOf(p.Pid(), field) }

// MemoryOf returns a value of /proc/PID/status, such as VmRSS, in MiB.
func MemoryOf(pid int, field string) (mib float64, err error) {
	return memory(fmt.Sprintf("/proc/%d/status", pid), field)
}

// Rollup returns a value of /proc/PID/smaps_rollup, such as Pss, in MiB.
func (p *Program) Rollup(field string) (mib float64, err error) {
	return memory(fmt.Sprintf("/proc/%d/smaps_rollup", p.Pid()), field)
}

// KernelMemory returns the memory of all objects and counters of the machine's kernel, in MiB. Other programs change it by some MiB.
func KernelMemory() (mib float64, err error) {
	return memory("/proc/meminfo", "SUnreclaim", "Percpu", "VmallocUsed")
}

// memory returns the sum of fields of a file in /proc, in MiB. It fails if the file has none of them.
func memory(file string, fields ...string) (mib float64, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if !slices.Contains(fields, name) {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", file, name, err)
		}
		mib, found = mib+kib/1024, true
	}
	if !found {
		return 0, fmt.Errorf("%s has no %s", file, fields)
	}
	return mib, nil
}

// Samples are the metrics of a moment by their series, as in name{label="value"}.
type Samples map[string]float64

// Sum adds up the series of a metric, whatever their labels, and counts them.
func (s Samples) Sum(name string) (sum float64, series int) {
	for key, value := range s {
		if key == name || strings.HasPrefix(key, name+"{") {
			sum += value
			series++
		}
	}
	return sum, series
}

// LastSync returns when a family was last synced with success; the zero time stands for never.
func (s Samples) LastSync(f inet.Family) time.Time {
	seconds := s[fmt.Sprintf("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=%q}", f)]
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(seconds*1e9))
}

// Metrics reads the program's metrics.
func (p *Program) Metrics(ctx context.Context) (Samples, error) {
	status, body, err := p.Get(ctx, metricsURL)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("get %s: status %d: %s", metricsURL, status, body)
	}
	samples := Samples{}
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if samples[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, fmt.Errorf("parse metrics: %w", err)
		}
	}
	return samples, nil
}

// AwaitSync waits until the program has synced each of the families (none given: both) at a time after the given one, and
// returns the time of the latest of those syncs. It fails with the end of the log when the program ends.
func (p *Program) AwaitSync(ctx context.Context, after time.Time, families ...inet.Family) (at time.Time, err error) {
	if len(families) == 0 {
		families = inet.Families[:]
	}
	err = p.Await(ctx, pollInterval, "a sync", func(ctx context.Context) error {
		samples, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		at = time.Time{}
		for _, f := range families {
			last := samples.LastSync(f)
			if !last.After(after) {
				return fmt.Errorf("%s was last synced at %s", f, last.Format(time.StampMilli))
			}
			if last.After(at) {
				at = last
			}
		}
		return nil
	})
	return at, err
}

// Await repeats check at intervals, or at those of Config.Rest if they are longer, until it returns nil. It gives up when ctx
// ends, or the program does.
func (p *Program) Await(
	ctx context.Context, interval time.Duration, what string, check func(context.Context) error,
) error {
	ticker := time.NewTicker(max(interval, p.config.Rest))
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("wait for %s of %s: it has ended (%s); its log ends with:\n%s", what, p, p.cmd.ProcessState, p.LogTail(15))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s of %s: %w: %w; its log ends with:\n%s", what, p, ctx.Err(), err, p.LogTail(15))
		case <-ticker.C:
		}
	}
}
