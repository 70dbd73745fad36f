package control

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
)

// DefaultPath is the default path of the socket. Its own directory can be a mount where the root file system is
// read-only.
const DefaultPath = "/run/kube-nftproxy/control.sock"

// PathOf returns the default path of the socket of the instance with a service-proxy name, which is empty for the
// default instance.
func PathOf(serviceProxyName string) string {
	if serviceProxyName == "" {
		return DefaultPath
	}
	return "/run/kube-nftproxy/control-" + serviceProxyName + ".sock"
}

// lookEvery is the interval of checks whether the socket still exists.
const lookEvery = 10 * time.Second

// Serve answers at the path until the context ends. It logs errors and tries again. A newer program replaces the
// socket; after that one exits, this one restores its own.
func Serve(ctx context.Context, path string, handler http.Handler) {
	if path == "" {
		return
	}
	logger := klog.FromContext(ctx)
	failed := ""
	for ctx.Err() == nil {
		s, err := listen(ctx, path)
		if err != nil {
			if text := err.Error(); text != failed {
				failed = text
				logger.Info("Commands such as \"kube-nftproxy status\" cannot reach this program; "+
					"mount a writable folder, or set --control-socket=\"\"", "err", err, "retryingTime", lookEvery)
			}
			wait(ctx, lookEvery)
			continue
		}
		failed = ""
		logger.V(2).Info("Answering commands", "socket", path)
		serveOn(ctx, s, handler)
		for ctx.Err() == nil && !abandoned(path) {
			wait(ctx, lookEvery)
		}
	}
}

// serveOn serves until the context ends, or the path leads elsewhere.
func serveOn(ctx context.Context, s *socket, handler http.Handler) {
	server := health.Bounded(handler)
	served := make(chan error, 1)
	go func() { served <- server.Serve(s) }()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-served:
			if !errors.Is(err, http.ErrServerClosed) {
				klog.FromContext(ctx).Error(err, "Stopped answering commands, will retry")
			}
			_ = s.Close()
			return
		case <-ctx.Done():
			_ = server.Close() // closes the connections, which notifies watching clients
		case <-ticker.C:
			if !s.owned() {
				_ = server.Close()
			}
		}
	}
}

// wait returns early if the context ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
