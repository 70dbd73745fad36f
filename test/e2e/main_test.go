//go:build e2e || twin

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// program is the path of the daemon under test.
var program string

// shared returns the cluster of all worlds that do not have their own one. It starts with the first of them.
var shared func() (*cluster.Cluster, error)

func TestMain(m *testing.M) {
	code, err := prepare(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func prepare(m *testing.M) (int, error) {
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // the test's unusual objects cause warnings
	ctx := context.Background()
	if _, err := cluster.Build(ctx, os.Stderr); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "knp-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if program, err = proxy.Build(ctx, dir); err != nil {
		return 0, err
	}
	stop := func() {}
	defer func() { stop() }()
	shared = sync.OnceValues(func() (*cluster.Cluster, error) {
		c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster")})
		if err != nil {
			return nil, err
		}
		stop = c.Stop
		return c, c.Checkpoint(ctx)
	})
	return m.Run(), nil
}

// world is a lab with a cluster.
type world struct {
	*testing.T
	*lab.Lab
	api *cluster.Cluster
	// dir is a scratch folder.
	dir string
}

// newWorld returns a lab with the shared cluster, which has the Node and no object of an earlier test. The node and the other nodes
// reach the API server at an address of their loopback interface.
func newWorld(t *testing.T, c lab.Config) *world {
	t.Helper()
	w := &world{T: t, Lab: lab.ForTest(t, c), dir: t.TempDir()}
	var err error
	if w.api, err = shared(); err == nil {
		err = w.api.Rewind(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append([]*lab.Host{w.Node}, w.Remotes...) {
		forward, err := twin.Forward(h, w.api.Server())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = forward.Close() })
	}
	w.apply(node())
	return w
}

// ownWorld returns a lab with its own cluster on the node, and creates the Node. The test may stop and break the cluster. The API
// server has the flags, and listens on the node's address, so that all hosts of the lab can reach it.
func ownWorld(t *testing.T, c lab.Config, flags ...string) *world {
	t.Helper()
	w := &world{T: t, Lab: lab.ForTest(t, c), dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	w.api, err = cluster.Start(ctx, cluster.Config{
		Dir: filepath.Join(w.dir, "cluster"), Netns: w.Node.Netns, Address: w.Node.IPv4, Flags: flags,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.api.Stop)
	w.apply(node())
	return w
}

// serve starts TCP and UDP servers on port 8080 of the hosts.
func (w *world) serve(hosts ...*lab.Host) {
	w.Helper()
	for _, h := range hosts {
		for _, proto := range protocols {
			if _, err := h.Serve(proto, backendPort); err != nil {
				w.Fatal(err)
			}
		}
	}
}

// eventually repeats check until it returns nil, and fails the test with its last error after the time.
func eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	if err := await(t.Context(), within, check); err != nil {
		t.Fatal(err)
	}
}

// await repeats check until it returns nil or the time is over.
func await(ctx context.Context, within time.Duration, check func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := check()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("after %v: %w", within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
