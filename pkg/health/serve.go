package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// RetryInterval is kube-proxy's time between two attempts to listen.
const RetryInterval = 5 * time.Second

// closeTimeout is how long answers that are being written may take after the end of ctx.
const closeTimeout = time.Second

// Serve answers HTTP requests on a TCP address until ctx ends, and then returns nil. Where it cannot listen, or cannot
// go on, it returns the error at once if hardFail is set (bindAddressHardFail), and otherwise logs it and tries again
// after retry, for as long as it takes: the rules must be kept up to date though a port is taken. An empty address
// means that the server is switched off: there is nothing to do.
//
// An address of 0.0.0.0 listens for IPv6 too, as with kube-proxy. The logger is that of ctx.
func Serve(ctx context.Context, addr string, handler http.Handler, retry time.Duration, hardFail bool) error {
	if addr == "" {
		return nil
	}
	var lc net.ListenConfig
	return serve(ctx, handler, retry, hardFail, func() (net.Listener, error) {
		return lc.Listen(ctx, "tcp", addr)
	})
}

// serve is Serve with the means to listen left open.
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
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// serveOnce listens and serves until ctx ends or the listener fails. It leaves no goroutine behind but those of
// answers that outlast the grace they are given.
func serveOnce(ctx context.Context, handler http.Handler, listen func() (net.Listener, error)) error {
	l, err := listen()
	if err != nil {
		return fmt.Errorf("open HTTP port: %w", err)
	}
	server := bounded(handler, newCrowd(mostConnections))
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

// shut ends a server: answers that are being written get a moment, then they are cut off.
func shut(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return server.Shutdown(ctx)
}
