//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// leaveRules creates kube-proxy's objects on the node: the chains of modes ipvs and iptables, without those that need other
// objects, and the tables of mode nftables.
func (w *world) leaveRules() {
	w.Helper()
	for _, command := range []string{
		"for c in iptables ip6tables; do grep -v nfacct ../../pkg/beside/takeover/testdata/$c.txt | xtables-nft-multi $c-restore -n; done",
		"for c in iptables ip6tables; do grep -v nfacct ../../pkg/beside/takeover/testdata/$c.txt | xtables-legacy-multi $c-restore -n; done",
		"for f in ip ip6; do nft \"add table $f kube-proxy; add chain $f kube-proxy services\"; done",
	} {
		if out, err := w.Node.Command(w.Context(), "sh", "-ec", command).CombinedOutput(); err != nil {
			w.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// left returns kube-proxy's remaining objects: lines of rules, and tables.
func (w *world) left() (lines []string) {
	w.Helper()
	const command = "for c in iptables ip6tables; do xtables-nft-multi $c-save; xtables-legacy-multi $c-save; done; nft list tables"
	out, err := w.Node.Command(w.Context(), "sh", "-ec", command).Output()
	must(w, err)
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, "KUBE-") || strings.HasSuffix(line, " kube-proxy") {
			lines = append(lines, line)
		}
	}
	return lines
}

// A running kube-proxy is reported on the Node, and its objects stay until it exits. After that, and after a --cleanup, they are
// removed.
func TestKubeProxyIsReportedWhileItRunsAndRemovedAfterwards(t *testing.T) {
	w := newWorld(t, lab.Config{})
	w.leaveRules()
	before := w.left()
	if len(before) < 100 {
		t.Fatalf("%d lines of kube-proxy's, want more", len(before))
	}
	running := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "iptables") })}
	must(t, w.Node.Do(func() error {
		l, err := net.Listen("tcp", "127.0.0.1:10249")
		if err == nil {
			go func() { _ = running.Serve(l) }()
		}
		return err
	}))
	t.Cleanup(func() { running.Close() })

	d := w.start()
	eventually(t, patience, func() error {
		events, err := w.api.Client().EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "KubeProxyRunning" && e.Regarding.Kind == "Node" && e.Regarding.Name == nodeName {
				return nil
			}
		}
		return fmt.Errorf("no Event among %d", len(events.Items))
	})
	eventually(t, patience, func() error {
		if log, err := os.ReadFile(d.Log()); err != nil || !strings.Contains(string(log), "\"Synced\"") {
			return fmt.Errorf("no sync yet (%v)", err)
		}
		return nil
	})
	if now := w.left(); len(now) != len(before) {
		t.Errorf("%d lines of kube-proxy's while it runs, want %d", len(now), len(before))
	}
	running.Close()
	eventually(t, 3*patience, func() error {
		if now := w.left(); len(now) > 0 {
			return fmt.Errorf("left: %d lines, such as %s", len(now), now[0])
		}
		return nil
	})
	eventually(t, patience, func() error {
		m, err := d.Metrics(t.Context())
		if err != nil {
			return err
		}
		if sum, series := m.Sum("kubenftproxy_leftovers"); sum != 0 || series != 4 {
			return fmt.Errorf("kubenftproxy_leftovers is %v in %d series", sum, series)
		}
		return nil
	})
	d.stop()

	w.leaveRules()
	for _, want := range []string{"Removed the rules of kube-nftproxy", ""} {
		start := time.Now()
		out, err := w.Node.Command(t.Context(), program, "--cleanup").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || want == "" && strings.Contains(string(out), "Removed") {
			t.Errorf("--cleanup: %v after %v\n%s", err, time.Since(start), out)
		}
	}
	if now := w.left(); len(now) > 0 {
		t.Errorf("left after --cleanup: %v", now)
	}
}
