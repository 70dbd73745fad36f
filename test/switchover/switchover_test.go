//go:build twin

package switchover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestTwinSwitchover makes all switches on the node of a lab, for each mode of kube-proxy.
func TestTwinSwitchover(t *testing.T) {
	c := newCluster(t)
	var report report
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { switchover(t, newNode(t, c, m), &report) })
	}
	t.Logf("effects on traffic:\n%s", report.table())
	if folder := os.Getenv("OUTPUT"); folder != "" {
		if len(report.rows) < len(modes)*len(switches) {
			t.Fatal("not all switches were made, so the page is not written")
		}
		if err := report.publish(folder); err != nil {
			t.Error(err)
		}
	}
}

// switches are made in each mode. Each one begins with one running program, and without rules of the other program.
var switches = []struct {
	name, title string
	f           func(*testing.T, *node, *row)
}{
	{"to ours", "kube-proxy to kube-nftproxy", toOurs},
	{"to kube-proxy", "kube-nftproxy to kube-proxy", toTheirs},
	{"killed before", "kube-nftproxy is killed, then kube-proxy, and the lease expires", killedBefore},
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

// watch runs f under traffic. It fails if a flow is broken or loses messages, and, unless the row has a gap, if an attempt fails.
func (n *node) watch(t *testing.T, r *row, f func()) {
	t.Helper()
	pins := n.pins(t)
	figures, err := n.traffic.during(t.Context(), f)
	lab.Must(t, err)
	r.figures = figures
	// Neither program knows the clients that the other program remembers.
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
		t.Errorf("flows lost %d messages, and moved %d times to another endpoint:\n%s", figures.lost, figures.moved,
			lines(strings.Join(slices.Sorted(slices.Values(figures.losses)), "\n"), 20))
	}
}

// handOver stops the running program and starts another one.
func (n *node) handOver(t *testing.T, r *row, path string) {
	t.Helper()
	n.stop(t)
	r.start = n.start(t, path)
}

// checkChange makes a change, and fails if it does not take effect within a time.
func (n *node) checkChange(t *testing.T, r *row, within time.Duration) {
	t.Helper()
	var wrong error
	if r.change, wrong = n.change(t, within); wrong != nil {
		t.Errorf("a change after %v: %v", round(r.change), wrong)
	}
}

// checkGone fails if list still returns rules after settling, or if rules of other programs have changed.
func (n *node) checkGone(t *testing.T, r *row, list func(*testing.T) string) {
	t.Helper()
	var left string
	if r.clean, left = awaitGone(t, list); left != "" {
		t.Errorf("rules left after %v:\n%s", r.clean.Round(time.Second), lines(left, 10))
	}
	n.checkForeign(t)
}

// toOurs replaces kube-proxy with kube-nftproxy, as a new image in the DaemonSet does.
func toOurs(t *testing.T, n *node, r *row) {
	n.begin(t, n.kubeProxy)
	n.watch(t, r, func() {
		n.handOver(t, r, n.ours)
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r, effective)
	})
}

// toTheirs replaces kube-nftproxy with kube-proxy, without any other command. The rules of kube-nftproxy are evaluated before kube-proxy's until
// their lease expires, which an orderly exit has shortened.
func toTheirs(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.watch(t, r, func() {
		n.handOver(t, r, n.kubeProxy)
		n.checkChange(t, r, plan.LeaseAtExit+effective)
	})
	if n.leftOurs(t) == "" {
		t.Error("the tables of kube-nftproxy are deleted: they must serve until kube-proxy does")
	}
	n.checkForeign(t)
}

// killedBefore kills kube-nftproxy and starts kube-proxy. It shortens the remaining time of the lease, so that the test need not wait for two minutes.
func killedBefore(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.watch(t, r, func() {
		n.signal(t, syscall.SIGKILL)
		r.start = n.start(t, n.kubeProxy)
		const rest = time.Second
		var shorten string
		for _, family := range []string{"ip", "ip6"} {
			set := family + " kube-nftproxy " + plan.LeaseSet
			shorten += fmt.Sprintf("flush set %s; add element %[1]s { tcp timeout %[2]s, udp timeout %[2]s, sctp timeout %[2]s }; ", set, rest)
		}
		nft(t, n.Node, shorten)
		n.checkChange(t, r, rest+effective)
	})
}

// cleanupBeside removes the rules of kube-nftproxy while kube-proxy runs.
func cleanupBeside(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.handOver(t, r, n.kubeProxy)
	n.watch(t, r, func() {
		n.exec(t, n.ours, "--cleanup")
		n.checkGone(t, r, n.leftOurs)
		n.checkChange(t, r, effective)
	})
}

// cleanupBefore removes the rules of kube-nftproxy before kube-proxy starts. Until the first sync of kube-proxy, new connections fail.
func cleanupBefore(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	r.gap = true
	n.watch(t, r, func() {
		n.stop(t)
		n.exec(t, n.ours, "--cleanup")
		n.checkGone(t, r, n.leftOurs)
		r.start = n.start(t, n.kubeProxy)
		n.checkChange(t, r, effective)
	})
}

// killed replaces kube-nftproxy with kube-proxy, kills kube-proxy during its first sync, and starts kube-nftproxy again.
func killed(t *testing.T, n *node, r *row) {
	n.begin(t, n.ours)
	n.watch(t, r, func() {
		n.stop(t)
		n.running = n.launch(n.kubeProxy)
		n.awaitFirstRules(t)
		n.signal(t, syscall.SIGKILL)
		r.start = n.start(t, n.ours)
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r, effective)
	})
}

// rivalMessage is part of kube-nftproxy's log message about a running kube-proxy.
const rivalMessage = "a kube-proxy is running on node "

// both starts kube-nftproxy while kube-proxy runs. kube-nftproxy must report the kube-proxy, and keep its rules until it exits.
func both(t *testing.T, n *node, r *row) {
	n.begin(t, n.kubeProxy)
	n.watch(t, r, func() {
		theirs := n.running
		n.running = n.launch(n.ours)
		n.awaitLog(t, n.running, rivalMessage)
		n.checkChange(t, r, effective)
		if n.leftKubeProxy(t) == "" {
			t.Error("the rules of kube-proxy are deleted while it runs")
		}
		lab.Must(t, theirs.Signal(syscall.SIGTERM))
		_ = theirs.Wait() // the signal kills it, so the error is expected
		n.checkGone(t, r, n.leftKubeProxy)
		n.checkChange(t, r, effective)
	})
}

// awaitFirstRules waits for the first rules of kube-proxy.
func (n *node) awaitFirstRules(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(settling)
	for n.leftKubeProxy(t) == "" {
		if time.Now().After(deadline) {
			t.Fatalf("%s wrote no rules; end of its log:\n%s", n.running, n.running.LogTail(15))
		}
	}
}

// awaitLog waits until a program's log contains a text, and returns the time since the program's start.
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
