//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestMemoryLimit runs the program in a control group with little memory, as in a container with a limit. With the documented
// memory, it serves, keeps serving during a full sync, and stays within the limit. With less, it may be killed and its rules
// stay: then the test doubles the limit and tries again. MEMORY=96 sets the first limit in MiB. It uses 1,000 Services with ten
// endpoints each by default, else BIG.
func TestMemoryLimit(t *testing.T) {
	n, limit := 1000, 48
	if os.Getenv("BIG") != "" {
		n, limit = bigSize(t), 160
	}
	limit = lab.Setting(t, "MEMORY", limit)
	w := ownWorld(t, lab.Config{Pods: 7, Remotes: 6})
	serveEcho(t, backendPort, append(w.Pods[:6:6], w.Remotes[:5]...)...)
	ips := w.createBig(n)
	g := newGroup(t, limit<<20)
	d := w.startIn(g)
	alive := func() error {
		if d.Exited() {
			t.Fatalf("with %d MiB it ended: %v; peak %d MiB, %s", limit, d.Wait(), g.peak()>>20, d.LogTail(5))
		}
		return nil
	}
	eventually(t, 2*time.Minute, func() error { return errors.Join(alive(), synced(d)) })
	w.checkSample(ips[0])
	m, err := d.Metrics(t.Context())
	must(t, err)
	if got, want := m["go_gc_gomemlimit_bytes"], float64(limit<<20)*0.9; math.Abs(got-want) > 1 {
		t.Errorf("the collector keeps the heap within %v bytes, want %v", got, want)
	}
	const rewrites = 5
	for i := range rewrites {
		nft(t, w.Node, "flush ruleset")
		eventually(t, time.Minute, func() error {
			_ = alive()
			m, err := d.scrape()
			if done, _ := m.Sum("kubenftproxy_repairs_total"); err == nil && done <= float64(i) {
				err = fmt.Errorf("%v repairs", done)
			}
			return err
		})
	}
	w.checkSample(ips[sampleIndex(n, 1)])
	_ = alive()
	d.noErrors()
	t.Logf("%d Services with %d MiB: peak of the control group %d MiB, resident now %.0f MiB, at most %.0f MiB", n, limit, g.peak()>>20,
		d.memory("VmRSS"), d.memory("VmHWM"))
}

// group is a control group with a memory limit.
type group struct {
	testing.TB
	folder string
	v1     bool
}

func newGroup(t testing.TB, limit int) *group {
	t.Helper()
	g := &group{TB: t}
	name := fmt.Sprintf("knp-%d", os.Getpid())
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(root + "/memory"); err == nil {
		g.v1, root, file = true, root+"/memory", "memory.limit_in_bytes"
	} else if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		t.Fatal(err)
	}
	g.folder = filepath.Join(root, name)
	must(t, os.Mkdir(g.folder, 0o755))
	t.Cleanup(func() {
		eventually(t, patience, func() error { return os.Remove(g.folder) })
	})
	must(t, os.WriteFile(filepath.Join(g.folder, file), []byte(strconv.Itoa(limit)), 0))
	return g
}

// peak returns its peak memory use.
func (g *group) peak() int {
	file := "memory.peak"
	if g.v1 {
		file = "memory.max_usage_in_bytes"
	}
	text, err := os.ReadFile(filepath.Join(g.folder, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// startIn starts the program in a control group.
func (w *world) startIn(g *group) *daemon {
	w.Helper()
	args := []string{"-c", "echo $$ > " + g.folder + `/cgroup.procs && exec "$@"`, "sh", program, "--kubeconfig", w.kubeconfig(), "--hostname-override", nodeName,
		"--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-v", "2"}
	return run(w.T, proxy.Config{Host: w.Node, Path: "sh", Args: args})
}
