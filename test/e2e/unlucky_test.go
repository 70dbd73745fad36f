//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/faulty"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestEtcdIsRestoredFromABackup restores etcd from a backup while the program runs, with the procedure of etcd's
// documentation: the watches of old versions fail, and the rules follow.
func TestEtcdIsRestoredFromABackup(t *testing.T) {
	b := besiege(t, 1)
	from := b.Pods[2]
	for _, name := range []string{"changes", "goes"} {
		b.apply(service(name), slice(name, name, endpoint(b.Pods[0].IPv4)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err := cluster.Build(ctx, os.Stderr, "etcdutl")
	must(t, err)
	must(t, b.api.Backup(ctx))
	must(t, b.Kubeconfig(b.kubeconfig, faulty.Credentials{}))
	changes, goes := b.clusterIPs("changes")[0], b.clusterIPs("goes")[0]
	b.startOn(b.Node, b.kubeconfig)
	reach(t, from, goes, "pod-0")
	b.apply(service("comes"), slice("comes", "comes", endpoint(b.Pods[0].IPv4)), slice("changes", "changes", endpoint(b.Pods[1].IPv4)))
	b.delete(service("goes"), slice("goes", "goes"))
	comes := b.clusterIPs("comes")[0]
	// More changes follow the backup than the restoration: for long, no version is newer than the known ones.
	for i := range 100 {
		b.apply(slice("comes", "comes", endpoint(b.Pods[i%2].IPv4)))
	}
	reach(t, from, comes, "pod-1")
	reach(t, from, changes, "pod-1")
	reach(t, from, goes)

	// The API server shuts down as for an update: it ends every watch in order, and the watches continue at the same version.
	b.awaitWatches(t)
	restored, release := context.WithCancel(t.Context())
	defer release()
	b.Intercept(func(http.ResponseWriter, *http.Request) bool { <-restored.Done(); return false })
	if n := b.EndWatches(""); n < 3 {
		t.Errorf("%d watches, want 3 or 4", n)
	}
	must(t, b.api.Restore(ctx))
	bounded := b.boundedLoad()
	release()
	start := time.Now()
	reach(t, from, changes, "pod-0")
	reach(t, from, goes, "pod-0")
	reach(t, from, comes)
	t.Logf("served as restored after %v", time.Since(start).Round(time.Millisecond))
	bounded(t)
	b.apply(slice("changes", "changes", endpoint(b.Pods[1].IPv4)))
	reach(t, from, changes, "pod-1")
}

// strangers are answers that no API server gives, but a server before it may.
var strangers = []struct {
	name   string
	status int
	header map[string]string
	body   string
	long   bool // it takes a while
}{
	{"some other JSON", http.StatusOK, map[string]string{"Content-Type": "application/json"}, `{"status": "ok"}`, false},
	{"closed for an hour", http.StatusServiceUnavailable, map[string]string{"Retry-After": "3600"}, "maintenance", false},
	{"a page to log in", http.StatusOK, map[string]string{"Content-Type": "text/html"}, "<html>log in</html>", true},
	{
		"a list of another age", http.StatusOK, map[string]string{"Content-Type": "application/json"},
		`{"kind": "ServiceList", "apiVersion": "v9", "metadata": {"resourceVersion": "1"}, "items": {"a": 1}}`, true,
	},
	{
		"compressed garbage", http.StatusOK,
		map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf", "Content-Encoding": "gzip"}, "garbage", true,
	},
	{
		"protobuf that ends early", http.StatusOK, map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"},
		"k8s\x00\x0a\x11\x0a\x02v1\x12\x0bServi", true,
	},
	{"nothing", http.StatusOK, map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"}, "", true},
}

// TestAnotherServerAnswers: other servers answer for the API server. The program ignores their answers, and does not wait for an
// hour. With API_FAULT=2s it tries answers of all kinds.
func TestAnotherServerAnswers(t *testing.T) {
	b := newBesieged(t)
	for _, stranger := range strangers {
		if stranger.long && os.Getenv("API_FAULT") == "" {
			continue
		}
		t.Run(stranger.name, func(t *testing.T) {
			b.answered(t, func(w http.ResponseWriter, r *http.Request) bool {
				for name, value := range stranger.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(stranger.status)
				_, _ = io.WriteString(w, stranger.body)
				return true
			})
			if err := b.healthy(); err != nil {
				t.Error(err)
			}
			b.Intercept(nil)
			b.awaitChange(t, patience)
		})
	}
	b.rightAnswers(t)
	b.asFresh(t)
}

// TestUnluckyServices: authors of Services and controllers make valid but unusual changes.
func TestUnluckyServices(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 3})
	w.serve(w.Pods[:2]...)
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	web, from := w.clusterIPs("web")[0], w.Pods[2]
	d := w.start()
	reach(t, from, web, "pod-0")

	t.Run("Services that lead to Services", func(t *testing.T) {
		w.apply(service("loop-1"), service("loop-2"))
		one, two := w.clusterIPs("loop-1")[0], w.clusterIPs("loop-2")[0]
		for name, to := range map[string]netip.Addr{"loop-1": two.Addr(), "loop-2": one.Addr()} {
			s := slice(name, name, endpoint(to))
			for i := range s.Ports {
				*s.Ports[i].Port = servicePort
			}
			w.apply(s)
		}
		eventually(t, patience, func() error {
			if list := nft(t, w.Node, "list map ip kube-nftproxy singles"); !strings.Contains(list, two.Addr().String()+" . 80") {
				return errors.New(list)
			}
			return nil
		})
		reach(t, from, one)
		reach(t, from, two)
		reach(t, from, web, "pod-0")
	})
	t.Run("long names", func(t *testing.T) {
		name := strings.Repeat("n", 63)
		s := service(name)
		s.Spec.Ports[0].Name, s.Spec.Ports[1].Name = strings.Repeat("t", 63), strings.Repeat("u", 63)
		e := slice(name, name, endpoint(w.Pods[1].IPv4))
		e.Ports[0].Name, e.Ports[1].Name = &s.Spec.Ports[0].Name, &s.Spec.Ports[1].Name
		w.apply(s, e)
		reach(t, from, w.clusterIPs(name)[0], "pod-1")
	})
	t.Run("deleted, but not yet gone", func(t *testing.T) {
		s := service("final")
		s.Finalizers = []string{"example.com/wait"}
		e := slice("final", "final", endpoint(w.Pods[0].IPv4))
		e.Finalizers = s.Finalizers
		w.apply(s, e)
		final := w.clusterIPs("final")[0]
		reach(t, from, final, "pod-0")
		services, slices := w.api.Client().CoreV1().Services("default"), w.api.Client().DiscoveryV1().EndpointSlices("default")
		must(t, errors.Join(services.Delete(t.Context(), "final", metav1.DeleteOptions{}), slices.Delete(t.Context(), "final", metav1.DeleteOptions{})))
		w.apply(slice("web", "web-1", endpoint(w.Pods[1].IPv4)))
		reach(t, from, web, "pod-1") // the earlier change has been seen
		reach(t, from, final, "pod-0")
		none := []byte(`{"metadata": {"finalizers": null}}`)
		lab.Must(t, lab.Err(services.Patch(t.Context(), "final", types.MergePatchType, none, metav1.PatchOptions{})))
		reach(t, from, final)
		lab.Must(t, lab.Err(slices.Patch(t.Context(), "final", types.MergePatchType, none, metav1.PatchOptions{})))
	})
	if failed, _ := d.awaitIdle(patience).Sum("kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); failed != 0 {
		t.Errorf("%v syncs failed", failed)
	}
	d.noErrors()
}

// TestTheReaderOfTheLogStops: the log is a pipe whose reader exits. The program serves.
func TestTheReaderOfTheLogStops(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	pipe := filepath.Join(s.dir, "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	// The test holds both ends, so that no open blocks; then it closes the reader.
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must(t, err)
	d := s.startBy("", []string{"sh", "-c", `pipe=$1; shift; exec "$@" 2> "$pipe"`, "sh", pipe})
	eventually(t, patience, func() error { return reached(t.Context(), s.Pods[1], inet.TCP, webIP, "pod-0") })
	must(t, reader.Close())
	for i := range 4 {
		s.serveBy(s.Pods[(i+1)%2])
		eventually(t, patience, func() error {
			return reached(t.Context(), s.Pods[1], inet.TCP, webIP, fmt.Sprintf("pod-%d", (i+1)%2))
		})
	}
	if d.Exited() {
		t.Errorf("it has ended: %v", d.Wait())
	}
	d.stop()
}
