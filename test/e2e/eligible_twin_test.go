//go:build twin

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestHealthIsThatOfKubeProxy starts both programs while their ports are in use, frees the ports, and queries their health during
// all changes of the Node that may make it ineligible.
func TestHealthIsThatOfKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1})
	var seen [2][]string
	for i, path := range bothPrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) { seen[i] = asked{world: w, path: path, theirs: i == 0}.in(t).eligibility() })
	}
	lab.Same(t, seen[0], seen[1], "health (-kube-proxy +ours)")
	lab.Same(t, 16, len(seen[0]), "answers")
}

// eligibility returns the answers of /healthz and /livez while the Node changes.
func (a asked) eligibility() (seen []string) {
	p := a.lateStart()
	for _, state := range []struct {
		name   string
		make   func()
		status int // of /healthz
	}{
		{"as it is", func() {}, http.StatusOK},
		{"another taint", func() { a.taint("node.kubernetes.io/unreachable", corev1.TaintEffectNoExecute) }, http.StatusOK},
		{"to be deleted", func() { a.taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule) }, http.StatusServiceUnavailable},
		{"not to be deleted", func() { a.apply(node()) }, http.StatusOK},
		{"to be deleted, softly", func() { a.taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectPreferNoSchedule) }, http.StatusServiceUnavailable},
		{"as it was", func() { a.apply(node()) }, http.StatusOK},
		{"deleted, waiting for a finalizer", a.doom, http.StatusServiceUnavailable},
		{"made anew", func() { p = a.anew(p) }, http.StatusOK},
	} {
		state.make()
		for path, want := range map[string]int{"/healthz": state.status, "/livez": http.StatusOK} {
			url := "http://127.0.0.1:10256" + path
			var r response
			eventually(a, patience, func() error {
				if r = a.request(http.MethodGet, url, nil, nil); r.status != want {
					return fmt.Errorf("%s: %s answers %d, want %d", state.name, path, r.status, want)
				}
				return nil
			})
			seen = append(seen, fmt.Sprintf("%s: %s: %d %s %s", state.name, path, r.status, headersOf(r), steady(url, r.body)))
		}
	}
	a.gone(p)
	slices.Sort(seen)
	return seen
}

// lateStart starts the program while its ports are in use, and frees them after the program has logged that.
func (a asked) lateStart() *proxy.Program {
	free := []func(){take(a, a.Node, "127.0.0.1:10249"), take(a, a.Node, "0.0.0.0:10256")}
	p := a.run()
	eventually(a, patience, func() error {
		text, err := os.ReadFile(p.Log())
		if n := strings.Count(string(text), "address already in use"); err == nil && n < 2 {
			return fmt.Errorf("%d messages about ports that are taken", n)
		}
		return err
	})
	freed := time.Now()
	for _, f := range free {
		f()
	}
	for _, url := range []string{metricsPage, "http://127.0.0.1:10256/livez"} {
		eventually(a, patience, func() error {
			_, _, err := p.Get(a.Context(), url)
			return err
		})
	}
	if took := time.Since(freed); took > 8*time.Second {
		a.Errorf("the ports are served %v after they were freed, want 5 s at most", took)
	}
	return p
}

func (a asked) taint(key string, effect corev1.TaintEffect) {
	n := node()
	n.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect}}
	a.apply(n)
}

// doom deletes the Node, which stays until it is released.
func (a asked) doom() {
	n := node()
	n.Finalizers = []string{"example.com/test"}
	a.apply(n)
	a.delete(n)
}

func (a asked) release() {
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := a.api.Client().CoreV1().Nodes().Patch(a.Context(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		a.Fatal(err)
	}
}

// anew replaces the deleted Node. kube-proxy has exited, and is started again as by a kubelet.
func (a asked) anew(p *proxy.Program) *proxy.Program {
	a.release()
	if a.theirs {
		a.exits(p)
	}
	a.apply(node())
	if a.theirs {
		p = a.run()
		eventually(a, patience, func() error {
			_, _, err := p.Get(a.Context(), "http://127.0.0.1:10256/livez")
			return err
		})
	}
	return p
}

// exits waits until kube-proxy has exited because there is no Node.
func (a asked) exits(p *proxy.Program) {
	a.Helper()
	if err := exits(a, p); err == nil || err.Error() != "exit status 1" {
		a.Errorf("kube-proxy exits with %v, want status 1", err)
	}
}

// gone deletes the Node: the last known state remains in effect, while kube-proxy exits.
func (a asked) gone(p *proxy.Program) {
	a.delete(node())
	defer a.apply(node())
	if a.theirs {
		a.exits(p)
		return
	}
	never(a, 300*time.Millisecond, func() error {
		if status, _, err := p.Get(a.Context(), "http://127.0.0.1:10256/healthz"); err != nil || status != http.StatusOK {
			return errors.Join(err, fmt.Errorf("status %d after the Node was deleted", status))
		}
		return nil
	})
}
