//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/faulty"
)

// TestTurnToList: in a cluster of 3,000 Nodes, a program that finds rules in force waits for its turn to list, and says
// so. The rules serve meanwhile, and a change is served after the turn. Without rules, a program does not wait.
func TestTurnToList(t *testing.T) {
	b := besiege(t, 1)
	must(t, b.Kubeconfig(b.kubeconfig, faulty.Credentials{}))
	var counts atomic.Int64
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if faulty.Resource(r) == "nodes" && r.URL.Query().Get("limit") == "1" {
			counts.Add(1)
		}
		return false
	})
	store := b.api.Store(t.Context())
	for i := range 2999 {
		store.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("other-%d", i), UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
		}})
	}
	must(t, store.Flush())
	b.apply(service("stable"), slice("stable", "stable-1", endpoint(b.Pods[0].IPv4)))
	stable := b.clusterIPs("stable")[0]
	b.d = b.startOn(b.Node, b.kubeconfig)
	reach(t, b.Pods[2], stable, "pod-0")
	if n := counts.Load(); n != 0 || len(b.d.lines("waits for a random time")) > 0 {
		t.Errorf("a start without rules counted the Nodes %d times", n)
	}

	const want = "waiting for its turn to list, up to 15s"
	d := &desk{T: t, Lab: b.Lab, socket: filepath.Join(b.dir, "control.sock")}
	for start, waited := 1, false; !waited; start++ {
		if start > 4 { // a wait of less than a second is rare
			t.Fatalf("status had no %q in %d starts; log:\n%s", want, start-1, b.d.LogTail(30))
		}
		b.d.Kill()
		b.d = b.startOn(b.Node, b.kubeconfig, "--control-socket", d.socket)
		pod := start % 2
		b.apply(slice("stable", "stable-1", endpoint(b.Pods[pod].IPv4)))
		eventually(t, patience, func() error {
			if text, _ := d.command("status"); strings.Contains(text, want) {
				waited = true
				before := reached(t.Context(), b.Pods[2], inet.TCP, stable, fmt.Sprintf("pod-%d", 1-pod))
				after := reached(t.Context(), b.Pods[2], inet.TCP, stable, fmt.Sprintf("pod-%d", pod))
				if before != nil && after != nil {
					t.Errorf("while the program waits: %v", before)
				}
			}
			return synced(b.d)
		})
		reach(t, b.Pods[2], stable, fmt.Sprintf("pod-%d", pod))
		if n := counts.Swap(0); n != 1 {
			t.Errorf("the program counted the Nodes %d times", n)
		}
		if len(b.d.lines("waits for a random time", `longest="15s"`)) != 1 {
			t.Errorf("log:\n%s", b.d.LogTail(30))
		}
	}
	b.d.stop()
	nft(t, b.Node, "flush ruleset")
	b.d = b.startOn(b.Node, b.kubeconfig)
	eventually(t, patience, func() error { return synced(b.d) })
	if n := counts.Load(); n != 0 {
		t.Errorf("a start without rules counted the Nodes %d times", n)
	}
}
