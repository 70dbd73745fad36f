package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"syscall"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// livezURL is where the daemon says that it lives, inside of the node.
const livezURL = "http://127.0.0.1:10256/livez"

// patience is how long anything may take that normally takes milliseconds.
const patience = lab.Patience

// daemon is a running kube-nftproxy.
type daemon struct{ *program.Program }

// startDaemon runs the program inside of the host, with its log added to the file. Not the terminal's Ctrl-C but the demo
// decides when it ends.
func startDaemon(host *lab.Host, log, path string, args ...string) (*daemon, error) {
	p, err := program.Start(context.Background(), program.Config{Host: host, Path: path, Args: args, Log: log, OwnGroup: true})
	if err != nil {
		return nil, err
	}
	return &daemon{p}, nil
}

// stop ends the daemon as a kubelet does: it asks, and does not wait for ever.
func (d *daemon) stop() error {
	timer := time.AfterFunc(patience/4, d.Kill)
	defer timer.Stop()
	_ = d.Signal(syscall.SIGTERM) // it may have ended before
	var exit *exec.ExitError
	if err := d.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("wait for kube-nftproxy: %w", err)
	}
	return nil
}

// live says whether /livez answers 200.
func (d *daemon) live(ctx context.Context) error {
	status, _, err := d.Get(ctx, livezURL)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("get %s: status %d", livezURL, status)
	}
	return err
}

// numbers are the metrics of a moment.
type numbers struct{ program.Samples }

func (d *daemon) metrics(ctx context.Context) (numbers, error) {
	samples, err := d.Metrics(ctx)
	return numbers{samples}, err
}

func (n numbers) full() int { return int(n.Samples[`kubenftproxy_batches_total{kind="full"}`]) }

func (n numbers) batches() int {
	return n.full() + int(n.Samples[`kubenftproxy_batches_total{kind="partial"}`])
}

func (n numbers) adopted() int { return int(n.Samples["kubenftproxy_restarts_adopted_total"]) }

// elements counts those that batches added or deleted.
func (n numbers) elements() int { return int(n.Samples["kubenftproxy_batch_elements_sum"]) }

// kernel is the time that the kernel took for all batches.
func (n numbers) kernel() time.Duration {
	return time.Duration(n.Samples["kubenftproxy_batch_duration_seconds_sum"] * float64(time.Second))
}

// await repeats check until it succeeds, until patience is over; what it waits for offers no event.
func (d *daemon) await(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return d.Await(ctx, 5*time.Millisecond, what, check)
}
