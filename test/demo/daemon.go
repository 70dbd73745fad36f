package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Where the daemon serves, inside of the node.
const (
	livezURL   = "http://127.0.0.1:10256/livez"
	metricsURL = "http://127.0.0.1:10249/metrics"
)

// daemon is a running kube-nftproxy.
type daemon struct {
	host   *lab.Host
	cmd    *lab.Cmd
	client *http.Client
	done   chan struct{} // closed when it has ended and err is set
	err    error
}

// startDaemon runs the program inside of the host, with its log added to the file. The thread that starts the child
// stays with it: Pdeathsig is about the parent's thread (prctl(2)). A process group of its own keeps the terminal's
// Ctrl-C from it, so that the demo decides when it ends.
func startDaemon(host *lab.Host, log, program string, args ...string) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of the daemon: %w", err)
	}
	defer out.Close() //nolint:errcheck // the child has its own
	d := &daemon{host: host, cmd: host.Command(context.Background(), program, args...), done: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	d.client = &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: d.dial, DisableKeepAlives: true}}
	started := make(chan error, 1)
	go func() {
		defer close(d.done)
		d.err = host.Do(func() error {
			err := d.cmd.Cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return d.cmd.Wait()
		})
		started <- d.err // where Do could not enter the namespace
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return d, nil
}

func (d *daemon) dial(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return d.host.Dial(ctx, model.TCP, to)
}

// ended returns why the daemon has ended, or nil while it runs.
func (d *daemon) ended() error {
	select {
	case <-d.done:
		return fmt.Errorf("kube-nftproxy ended by itself: %s", d.cmd.ProcessState)
	default:
		return nil
	}
}

// kill ends the daemon without a chance to do anything.
func (d *daemon) kill() error { return d.signal(syscall.SIGKILL) }

// stop ends the daemon as a kubelet does: it asks, and does not wait for ever.
func (d *daemon) stop() error {
	timer := time.AfterFunc(2*time.Second, func() { _ = d.cmd.Process.Kill() }) // it may have ended just now
	defer timer.Stop()
	return d.signal(syscall.SIGTERM)
}

// signal sends a signal and waits for the end.
func (d *daemon) signal(s os.Signal) error {
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end kube-nftproxy: %w", err)
	}
	<-d.done
	var exit *exec.ExitError
	if d.err != nil && !errors.As(d.err, &exit) {
		return fmt.Errorf("wait for kube-nftproxy: %w", d.err)
	}
	return nil
}

// live says whether /livez answers 200.
func (d *daemon) live(ctx context.Context) error {
	resp, err := d.get(ctx, livezURL)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (d *daemon) get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("get %s: %s", url, resp.Status), resp.Body.Close())
	}
	return resp, nil
}

// numbers are the metrics of a moment, by series as in the text format, for example `x_total{kind="full"}`.
type numbers map[string]float64

func (d *daemon) metrics(ctx context.Context) (numbers, error) {
	resp, err := d.get(ctx, metricsURL)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	all := numbers{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[series] = v
		}
	}
	return all, lines.Err()
}

func (n numbers) full() int { return int(n[`kubenftproxy_batches_total{kind="full"}`]) }

func (n numbers) batches() int {
	return n.full() + int(n[`kubenftproxy_batches_total{kind="partial"}`])
}

func (n numbers) adopted() int { return int(n["kubenftproxy_restarts_adopted_total"]) }

// elements counts those that batches added or deleted.
func (n numbers) elements() int { return int(n["kubenftproxy_batch_elements_sum"]) }

// kernel is the time that the kernel took for all batches.
func (n numbers) kernel() time.Duration {
	return time.Duration(n["kubenftproxy_batch_duration_seconds_sum"] * float64(time.Second))
}

// await repeats check until it succeeds, for at most ten seconds; what it waits for offers no event.
func (d *daemon) await(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if gone := d.ended(); gone != nil {
			return gone
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-ticker.C:
		}
	}
}
