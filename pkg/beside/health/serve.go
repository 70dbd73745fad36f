package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
)

// RetryInterval is kube-proxy's interval between attempts to listen.
const RetryInterval = 5 * time.Second

// closeTimeout is the time that unfinished answers get after the end of ctx.
const closeTimeout = time.Second

// Serve answers HTTP requests on a TCP address until ctx ends, and then returns nil. If it cannot listen or cannot
// continue, the result depends on hardFail (bindAddressHardFail). With hardFail, it returns the error. Otherwise, it
// logs the error and retries at the interval retry, without limit: the rules must stay up to date even if a port is
// in use. With an empty address, it returns nil.
//
// An address of 0.0.0.0 also listens on IPv6, as in kube-proxy. The logger comes from ctx. state receives the error
// each time that it cannot listen, and nil each time that it listens.
func Serve(
	ctx context.Context, addr string, handler http.Handler, retry time.Duration, hardFail bool, state func(error),
) error {
	if addr == "" {
		return nil
	}
	var lc net.ListenConfig
	return serve(ctx, handler, retry, hardFail, func() (net.Listener, error) {
		l, err := lc.Listen(ctx, "tcp", addr)
		state(err)
		return l, err
	})
}

// serve does the same as Serve, with a function that opens the listener.
func serve(
	ctx context.Context, handler http.Handler, retry time.Duration, hardFail bool, listen func() (net.Listener, error),
) error {
	for {
		err := serveOnce(ctx, handler, listen)
		if ctx.Err() != nil {
			return nil
		}
		if hardFail {
			return err
		}
		klog.FromContext(ctx).Error(err, "Cannot serve HTTP, will retry", "in", retry)
		if !beside.Sleep(ctx, retry) {
			return nil
		}
	}
}

// serveOnce listens and serves until ctx ends or the listener fails. After its return, only goroutines of answers
// that take longer than closeTimeout may still run.
func serveOnce(ctx context.Context, handler http.Handler, listen func() (net.Listener, error)) error {
	l, err := listen()
	if err != nil {
		return fmt.Errorf("open HTTP port: %w", err)
	}
	server := bounded(handler, newCrowd(descriptors.Clients()))
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
		err = shut(ctx, server)
		if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	}
	if err != nil {
		return fmt.Errorf("serve HTTP on %v: %w", l.Addr(), errors.Join(err, server.Close()))
	}
	return nil
}

// shut stops a server. After closeTimeout, it returns an error if answers are unfinished.
func shut(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return server.Shutdown(ctx)
}
