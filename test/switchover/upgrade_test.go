//go:build e2e

package switchover

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestUpgrade starts a program whose tables have another form, with other names and properties of maps and base chains, as an earlier version
// may have. Under load, it replaces this program with the present one, goes back, and replaces it again. Each start sends one full batch,
// loses no packet, and keeps session affinity.
func TestUpgrade(t *testing.T) {
	w := newRestarting(t, rand.New(rand.NewPCG(1, 2)))
	present, older := w.path, buildOlder(t)
	w.path = older
	w.start(t)
	w.awaitSync(t)
	if got := nft(t, w.Node, "list map ip kube-nftproxy destinations"); !strings.Contains(got, "10.244.0.11") {
		t.Fatalf("the program with other tables has no map destinations:\n%s", got)
	}
	pins := w.pins(t)
	traffic, err := newTraffic(t.Context(), w.Client, w.Pods[2], []*lab.Host{w.Client, w.Node, w.Pods[2]}, w.targets())
	lab.Must(t, err)
	traffic.loads[inet.TCP].every, traffic.loads[inet.UDP].every = 2*time.Millisecond, 5*time.Millisecond
	for _, path := range []string{present, older, present} {
		w.path = path
		figures, err := traffic.during(t.Context(), func() {
			lab.Must(t, w.running.Signal(syscall.SIGTERM))
			<-w.running.Ended()
			w.start(t)
			w.awaitSync(t)
		})
		lab.Must(t, err)
		samples, err := w.running.Metrics(t.Context())
		lab.Must(t, err)
		full, partial := samples[`kubenftproxy_batches_total{kind="full"}`], samples[`kubenftproxy_batches_total{kind="partial"}`]
		if full != 1 || partial > 1 { // the partial batch deletes unused chains
			t.Errorf("%v full batches and %v partial ones, want one", full, partial)
		}
		failed := append(figures.tcp.failures, figures.udp.failures...)
		if len(failed)+figures.lost+figures.moved+len(figures.broken) > 0 || figures.tcp.made < 100 || figures.sent < 100 {
			t.Errorf("%d connections, %d requests, %d flows with %d messages: failed %v, lost %v, broken %v", figures.tcp.made, figures.udp.made,
				figures.flows, figures.sent, failed, figures.losses, figures.broken)
		}
		t.Logf("%d connections, %d UDP requests, %d flows with %d messages", figures.tcp.made, figures.udp.made, figures.flows, figures.sent)
		lab.Same(t, pins, w.pins(t), "session affinity (-before +after)")
	}
	if got := nft(t, w.Node, "list table ip kube-nftproxy"); strings.Contains(got, "destinations") || strings.Contains(got, "early") {
		t.Error("a map or chain of the other form is left")
	}
}

// buildOlder builds a program whose tables have another form, by replacing text in pkg/plan.
func buildOlder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	for file, changes := range map[string][]string{
		"sets.go":    {`p + "endpoints"`, `p + "destinations"`, `"for ports that no service has"`, `"another comment"`},
		"ruleset.go": {`base("prerouting"`, `base("early"`, `base("output", unix.NF_INET_LOCAL_OUT, at.leased`, `base("output", unix.NF_INET_LOCAL_OUT, at.leased+1`},
	} {
		path, err := filepath.Abs("../../pkg/plan/" + file)
		lab.Must(t, err)
		text, err := os.ReadFile(path)
		lab.Must(t, err)
		for i := 0; i < len(changes); i += 2 {
			if !strings.Contains(string(text), changes[i]) {
				t.Fatalf("%s has no %s", file, changes[i])
			}
		}
		replaced[path] = filepath.Join(dir, file)
		lab.Must(t, os.WriteFile(replaced[path], []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
	}
	lab.Must(t, err)
	t.Setenv("GOFLAGS", "-overlay="+filepath.Join(dir, "overlay.json"))
	return program.BuildForTest(t)
}
