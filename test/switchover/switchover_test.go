//go:build twin

package switchover

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestTwinSwitchover takes the node of a lab through all switches, for each of kube-proxy's modes.
func TestTwinSwitchover(t *testing.T) {
	c := newCluster(t)
	var report report
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { switchover(t, newNode(t, c, m), &report) })
	}
	t.Logf("what the traffic noticed:\n%s", report.table())
	if folder := os.Getenv("OUTPUT"); folder != "" {
		if len(report.rows) < len(modes)*len(switches) {
			t.Fatal("not all switches were made: nothing is written")
		}
		if err := report.publish(folder); err != nil {
			t.Error(err)
		}
	}
}

// switches are those that are made in each mode. Each begins where one program runs and the other has left nothing.
var switches = []struct {
	name, title string
	f           func(*testing.T, *node, *row)
}{
	{"to ours", "kube-proxy to kube-nftproxy", toOurs},
	{"to kube-proxy", "kube-nftproxy to kube-proxy", toTheirs},
	{"lease", "… and the lease expires", leaseRunsOut},
	{"cleanup beside", "… or `--cleanup` while kube-proxy runs", cleanupBeside},
	{"cleanup before", "`--cleanup`, then kube-proxy", cleanupBefore},
	{"killed", "to kube-proxy, which is killed in its first sync, and back", killed},
	{"both", "kube-nftproxy starts while kube-proxy runs, which exits later", both},
}

func switchover(t *testing.T, n *node, r *report) {
	for _, s := range switches {
		t.Run(s.name, func(t *testing.T) {
			row := row{mode: n.mode, title: s.title}
			s.f(t, n, &row)
			r.add(row)
		})
	}
}

// watch runs f while traffic flows, and fails if the traffic noticed more than it may.
func (n *node) watch(t *testing.T, r *row, f func()) {
	t.Helper()
	pins := n.pins(t)
	figures, err := n.traffic.during(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	r.figures = figures
	// Neither program knows which clients the other remembers.
	for client, server := range n.pins(t) {
		if server != pins[client] {
			r.repinned++
		}
	}
	t.Log(r)
	for _, err := range figures.broken {
		t.Errorf("broken: %v", err)
	}
	if !r.gap && r.failures() > 0 {
		t.Errorf("%d attempts failed: %s", r.failures(), r.describe())
	}
	if figures.lost+figures.moved > 0 {
		t.Errorf("flows lost %d messages, and %d went to another endpoint:\n%s", figures.lost, figures.moved,
			lines(strings.Join(slices.Sorted(slices.Values(figures.losses)), "\n"), 20))
	}
}

// handOver ends one program and starts the other.
func (n *node) handOver(t *testing.T, r *row, path string) {
	t.Helper()
	n.stop(t)
	r.start = n.start(t, path)
}

// checkChange makes a change and fails if it isn't in effect soon.
func (n *node) checkChange(t *testing.T, r *row) {
	t.Helper()
	var wrong error
	if r.change, wrong = n.change(t, effective); wrong != nil {
		t.Errorf("a change after %v: %v", r.change.Round(time.Millisecond), wrong)
	}
}

// checkGone fails if what list finds doesn't go.
func (n *node) checkGone(t *testing.T, r *row, list func(*testing.T) string) {
	t.Helper()
	var left string
	if r.clean, left = awaitGone(t, list); left != "" {
		t.Errorf("left after %v:\n%s", r.clean.Round(time.Second), lines(left, 10))
	}
	n.checkForeign(t)
}

// toOurs replaces the image.
func toOurs(t *testing.T, n *node, r *row) {
	n.begin(t, n.kubeProxy)
	n.watch(t, r, func() {
		n.handOver(t, r, n.ours)
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r)
	})
}

// toTheirs puts the image back and does nothing else. In mode iptables, whose tables are often there already, our rules may come
// before kube-proxy's until their lease runs out.
func toTheirs(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.watch(t, r, func() {
		n.handOver(t, r, n.kubeProxy)
		var wrong error
		if r.change, wrong = n.change(t, effective); wrong != nil && n.mode.iptables == "" {
			t.Errorf("a change after %v: %v", round(r.change), wrong)
		}
		r.stale = wrong != nil
		t.Logf("a change while the lease lasts: %v", wrong)
	})
	if n.leftOurs(t) == "" {
		t.Error("our tables are gone: they should serve until kube-proxy does")
	}
	n.checkForeign(t)
}

// leaseRunsOut shortens what is left of the two minutes of our rules' lease.
func leaseRunsOut(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.handOver(t, r, n.kubeProxy)
	n.watch(t, r, func() {
		var shorten string
		for _, family := range []string{"ip", "ip6"} {
			set := family + " kube-nftproxy " + plan.LeaseSet
			shorten += "flush set " + set + "; add element " + set + " { tcp timeout 500ms, udp timeout 500ms, sctp timeout 500ms }; "
		}
		nft(t, n.Node, shorten)
		n.checkChange(t, r)
	})
}

// cleanupBeside removes our rules where kube-proxy runs already.
func cleanupBeside(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.handOver(t, r, n.kubeProxy)
	n.watch(t, r, func() {
		n.exec(t, n.ours, "--cleanup")
		n.checkGone(t, r, n.leftOurs)
		n.checkChange(t, r)
	})
}

// cleanupBefore removes our rules before kube-proxy starts: until it has synced, nobody serves new connections.
func cleanupBefore(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	r.gap = true
	n.watch(t, r, func() {
		n.stop(t)
		n.exec(t, n.ours, "--cleanup")
		n.checkGone(t, r, n.leftOurs)
		r.start = n.start(t, n.kubeProxy)
		n.checkChange(t, r)
	})
}

// killed has kube-proxy killed in its first sync after ours, and ours come back.
func killed(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.watch(t, r, func() {
		n.stop(t)
		n.running = n.launch(t, n.kubeProxy)
		n.awaitFirstRules(t)
		n.signal(t, syscall.SIGKILL)
		r.start = n.start(t, n.ours)
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r)
	})
}

// rivalMessage is what ours says of a kube-proxy that runs.
const rivalMessage = "a kube-proxy is running on this node"

// both starts ours while kube-proxy runs: it has to say so, and leave the rules to kube-proxy until that ends.
func both(t *testing.T, n *node, r *row) {
	n.begin(t, n.kubeProxy)
	n.watch(t, r, func() {
		theirs := n.running
		n.running = n.launch(t, n.ours)
		n.awaitLog(t, n.running, rivalMessage)
		n.checkChange(t, r)
		if n.leftKubeProxy(t) == "" {
			t.Error("kube-proxy's rules are gone while it runs")
		}
		if err := theirs.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = theirs.Wait() // it dies of the signal
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r)
	})
}

// awaitFirstRules waits until kube-proxy has made its first rules.
func (n *node) awaitFirstRules(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(settling)
	for n.leftKubeProxy(t) == "" {
		if time.Now().After(deadline) {
			t.Fatalf("%s made no rules; its log ends with:\n%s", n.running, n.running.LogTail(15))
		}
	}
}

// awaitLog waits until a program's log has a text, and returns how long that took since its start.
func (n *node) awaitLog(t *testing.T, p *program.Program, text string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	if err := p.Await(ctx, 50*time.Millisecond, strconv.Quote(text), func(context.Context) error {
		log, err := os.ReadFile(p.Log())
		if err == nil && !strings.Contains(string(log[n.logged:]), text) {
			err = errors.New("not in its log")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return time.Since(p.Started())
}
