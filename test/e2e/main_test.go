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

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// program is the path of the daemon under test.
var program string

// shared has the clusters of all worlds that do not have their own one. One world at a time uses a cluster. A cluster starts with its
// first world.
var shared = make(chan func() (*cluster.Cluster, error), 3)

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
	stop := make(chan func(), cap(shared))
	for i := range cap(shared) {
		shared <- sync.OnceValues(func() (*cluster.Cluster, error) {
			c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, fmt.Sprint("cluster-", i))})
			if err != nil {
				return nil, err
			}
			stop <- c.Stop
			return c, c.Checkpoint(ctx)
		})
	}
	defer func() {
		close(stop)
		for s := range stop {
			s()
		}
	}()
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

// newWorld returns a lab with a shared cluster, which has the Node and no object of an earlier test. The node and the other nodes
// reach the API server at an address of their loopback interface. The test runs beside others.
func newWorld(t *testing.T, c lab.Config) *world {
	t.Helper()
	t.Parallel()
	start := <-shared
	t.Cleanup(func() { shared <- start })
	w := &world{T: t, Lab: lab.ForTest(t, c), dir: t.TempDir()}
	var err error
	if w.api, err = start(); err == nil {
		err = w.api.Rewind(t.Context())
	}
	must(t, err)
	for _, h := range append([]*lab.Host{w.Node}, w.Remotes...) {
		forward, err := twin.Forward(h, w.api.Server())
		must(t, err)
		t.Cleanup(func() { _ = forward.Close() })
	}
	w.apply(node())
	return w
}

// ownWorld returns a lab with its own cluster on the node, and creates the Node. The test may stop and break the cluster, and runs beside
// other tests of this kind. The API server has the flags, and listens on the node's address, so that all hosts of the lab can reach it.
func ownWorld(t *testing.T, c lab.Config, flags ...string) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, Lab: lab.ForTest(t, c), dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	w.api, err = cluster.Start(ctx, cluster.Config{
		Dir: filepath.Join(w.dir, "cluster"), Netns: w.Node.Netns, Address: w.Node.IPv4, Flags: flags,
	})
	must(t, err)
	t.Cleanup(w.api.Stop)
	w.apply(node())
	return w
}

// serve starts TCP and UDP servers on port 8080 of the hosts.
func (w *world) serve(hosts ...*lab.Host) {
	w.Helper()
	for _, proto := range protocols {
		serve(w, proto, backendPort, hosts...)
	}
}

// serve starts servers of a protocol on a port of the hosts.
func serve(t testing.TB, proto inet.Protocol, port uint16, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		_, err := h.Serve(proto, port)
		must(t, err)
	}
}

// serveEcho starts servers that return each line.
func serveEcho(t testing.TB, port uint16, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		_, err := h.ServeEcho(port)
		must(t, err)
	}
}

// The vocabulary of the tests.
var must, eventually, await = lab.Must, lab.Eventually, lab.Await

// mustRead returns the content of a file.
func mustRead(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}
