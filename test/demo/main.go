package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The exit statuses.
const (
	statusFailed      = 1
	statusInterrupted = 128 + int(syscall.SIGINT)
)

func main() {
	var d demo
	flag.BoolVar(&d.api, "api", false, "read from a real etcd and kube-apiserver instead of a folder of manifests")
	flag.BoolVar(&d.keep, "keep", false, "at the end, start a shell on the node")
	flag.StringVar(&d.program, "daemon", "bin/kube-nftproxy", "the program to show")
	flag.StringVar(&d.kubernetes, "kubernetes", "bin/kubernetes", "the folder of kube-proxy, and for -api of etcd and kube-apiserver")
	flag.Parse()
	os.Exit(run(&d))
}

// run shows everything, cleans up, and returns the exit status. A reader who closes the pipe, as head does, is an
// interruption too: without a handler, SIGPIPE would end the program before it has cleaned up.
func run(d *demo) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(),
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	d.out = newPrinter(os.Stdout)
	d.started = time.Now()
	defer func() { _ = d.close() }() // in case of a panic
	err := d.show(ctx)
	if err == nil && d.keep {
		err = d.prompt(ctx)
	}
	if err != nil && ctx.Err() == nil {
		d.explain(err)
	}
	left := d.close()
	switch {
	case left != nil:
		d.out.failed(fmt.Sprintf("cleaning up failed: %v", left))
		return statusFailed
	case ctx.Err() != nil:
		d.out.line("")
		d.out.note("Interrupted. Namespaces, programs and files of the demo are gone.")
		return statusInterrupted
	case err != nil:
		return statusFailed
	}
	d.farewell()
	return 0
}

// explain tells what went wrong.
func (d *demo) explain(err error) {
	var m *mismatch
	switch {
	case errors.As(err, &m):
		d.out.failed(m.what)
		d.out.line("       expected  " + m.want)
		d.out.line("       saw       " + m.got)
	case errors.Is(err, fs.ErrPermission):
		d.out.failed("The demo creates network namespaces. Run it as root: " + err.Error())
		return
	default:
		d.out.failed(err.Error())
	}
	if tail := d.logTail(); tail != "" {
		d.out.note("The end of kube-nftproxy's log:")
		d.out.line(tail)
	}
}

// mismatch is a statement that turned out to be wrong.
type mismatch struct{ what, want, got string }

func (m *mismatch) Error() string {
	return fmt.Sprintf("%s: expected %s, saw %s", m.what, m.want, m.got)
}
