package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// asProgram, an environment variable, turns the test binary into the program, under any name.
const asProgram = "RUN_AS_KUBE_NFTPROXY"

// node runs several processes of the program, each with its own folder.
type node struct {
	*testing.T
	*lab.Lab
	dir string
}

func newNode(t *testing.T) *node {
	t.Parallel()
	n := &node{T: t, Lab: lab.ForTest(t, lab.Config{Pods: 2}), dir: t.TempDir()}
	for _, pod := range n.Pods {
		if _, err := pod.Serve(inet.TCP, 8080); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// process is a running program with its folder of objects.
type process struct {
	*program.Program
	folder, metrics string
	node            *node
}

// start runs the program under a name, with unique ports, and the objects of a pod.
func (n *node) start(name string, number, pod int, flags ...string) *process {
	n.Helper()
	p := &process{folder: filepath.Join(n.dir, fmt.Sprint(number)), metrics: fmt.Sprintf("127.0.0.1:%d", 20000+number), node: n}
	test, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(filepath.Join(p.folder, "objects"), 0o755)
	}
	if err == nil {
		err = os.Symlink(test, filepath.Join(p.folder, name))
	}
	lab.Must(n, err)
	p.serve(pod)
	args := append([]string{
		"--hostname-override", "node-1", "--metrics-bind-address", p.metrics, "--healthz-bind-address", fmt.Sprintf("127.0.0.1:%d", 21000+number),
		"--control-socket", filepath.Join(p.folder, "control"), "-v", "2",
	}, flags...)
	if !slices.Contains(flags, "--master") {
		args = append(args, "--manifests", filepath.Join(p.folder, "objects"))
	}
	p.Program = program.ForTest(n.T, program.Config{
		Host: n.Node, Path: filepath.Join(p.folder, name), Args: args, Log: filepath.Join(p.folder, fmt.Sprintf("log-%d", number)), Env: []string{asProgram + "=1"},
	})
	return p
}

// serve makes a pod the only endpoint of the Service.
func (p *process) serve(pod int) {
	p.node.Helper()
	text := strings.ReplaceAll(oneService, "10.244.0.10", p.node.Pods[pod].IPv4.String())
	file := filepath.Join(p.folder, "objects", "all.yaml")
	err := os.WriteFile(file+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	lab.Must(p.node, err)
}

// metric reads a metric, with any labels.
func (p *process) metric(name string) float64 {
	p.node.Helper()
	_, body, err := p.Get(p.node.Context(), "http://"+p.metrics+"/metrics")
	lab.Must(p.node, err)
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare == name {
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				p.node.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

func (n *node) eventually(done func() error) {
	n.Helper()
	lab.Eventually(n, 30*time.Second, done)
}

// reaches returns nil if a connection to the Service reaches a pod.
func (n *node) reaches(pod int) error {
	to := netip.MustParseAddrPort("10.96.0.10:80")
	if a := n.Client.Probe(n.Context(), inet.TCP, to, lab.Options{}); a.Server != fmt.Sprintf("pod-%d", pod) {
		return fmt.Errorf("%+v, want an answer of pod-%d", a, pod)
	}
	return nil
}

// says returns nil if a line of the log contains a text.
func (p *process) says(text string) error {
	if log := p.LogTail(1000); !strings.Contains(log, text) {
		return fmt.Errorf("the log doesn't say %q:\n%s", text, log)
	}
	return nil
}

func (n *node) nft(command string) string {
	n.Helper()
	return n.Node.Run(n, "nft", command)
}

// leased returns nil if the IPv4 lease has all its elements.
func (n *node) leased() error {
	if list := n.nft("list set ip kube-nftproxy lease"); strings.Count(list, "expires") != 3 {
		return errors.New(list)
	}
	return nil
}

// A process that waits for an API server renews the lease of an earlier process's tables.
func TestTheLeaseLastsWhileTheAPIServerIsAway(t *testing.T) {
	n := newNode(t)
	first := n.start("kube-nftproxy", 1, 0)
	n.eventually(func() error { return n.reaches(0) })
	first.Kill()
	n.nft("flush set ip kube-nftproxy lease")
	if n.leased() == nil {
		t.Fatal("the lease has not run out")
	}
	waits := n.start("kube-nftproxy", 2, 0, "--master", "http://127.0.0.1:1")
	n.eventually(n.leased)
	if strings.Contains(waits.LogTail(1000), `"Synced"`) {
		t.Error("it has synced without an API server")
	}
	if err := n.reaches(0); err != nil {
		t.Error(err)
	}
}

// After an orderly exit, the lease ends within seconds, and another proxy is first. A process that is killed leaves the lease as it is. The next process
// renews the lease at its start, also if it was waiting when the other one exited.
func TestAnOrderlyExitShortensTheLease(t *testing.T) {
	n := newNode(t)
	restOfLease := func() time.Duration {
		m := regexp.MustCompile(`tcp .*expires ([0-9a-z]+)`).FindStringSubmatch(n.nft("list set ip kube-nftproxy lease"))
		if m == nil {
			return 0
		}
		rest, err := time.ParseDuration(m[1])
		lab.Must(t, err)
		return rest
	}
	long := func() error {
		if rest := restOfLease(); rest <= plan.LeaseAtExit {
			return fmt.Errorf("the lease ends in %v", rest)
		}
		return nil
	}
	first := n.start("kube-nftproxy", 1, 0)
	n.eventually(func() error { return n.reaches(0) })
	first.Kill()
	if err := long(); err != nil {
		t.Errorf("after a crash, %v", err)
	}
	second := n.start("kube-nftproxy", 2, 0)
	n.eventually(func() error { return second.says(`"Synced"`) })
	n.nft("add table ip other; add chain ip other c { type nat hook prerouting priority dstnat; }; " +
		"add rule ip other c ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.0.11:8080")
	if err := n.reaches(0); err != nil {
		t.Errorf("while the program runs: %v", err)
	}
	waits := n.start("kube-nftproxy", 3, 0)
	n.eventually(func() error { return second.says("another instance (kube-nftproxy, pid") })
	lab.Must(t, second.Signal(syscall.SIGTERM))
	lab.Must(t, second.Wait())
	if err := long(); err != nil {
		t.Errorf("after the exit of a process that stood by, %v", err)
	}
	lab.Must(t, waits.Signal(syscall.SIGTERM))
	lab.Must(t, waits.Wait())
	if rest := restOfLease(); rest > plan.LeaseAtExit {
		t.Errorf("after the exit, the lease ends in %v", rest)
	}
	n.eventually(func() error { return n.reaches(1) })
	n.start("kube-nftproxy", 4, 0)
	n.eventually(long)
	if err := n.reaches(0); err != nil {
		t.Errorf("after the next start: %v", err)
	}
}

// Two instances have different names, flags and objects. The newer one serves; the older one reports this and commits nothing. It
// serves again after the newer one exits.
func TestTwoInstancesNeverFight(t *testing.T) {
	n := newNode(t)
	older := n.start("kube-nftproxy", 1, 0)
	n.eventually(func() error { return n.reaches(0) })
	newer := n.start("kube-proxy", 2, 1, "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--detect-local-mode", "ClusterCIDR")
	n.eventually(func() error { return n.reaches(1) })
	n.eventually(func() error { return older.says("another instance (kube-proxy, pid") })
	if got := older.metric("kubenftproxy_standing_by"); got != 1 {
		t.Errorf("kubenftproxy_standing_by of the older one is %v", got)
	}
	full := func() [2]float64 {
		const name = "kubenftproxy_batches_total"
		return [2]float64{older.metric(name), newer.metric("kubenftproxy_repairs_total")}
	}
	before := full()
	older.serve(0) // this change is not served
	for pod := range 6 {
		newer.serve(pod % 2)
		n.eventually(func() error { return n.reaches(pod % 2) })
	}
	time.Sleep(2 * time.Second) // four checks of each process
	if after := full(); after != before {
		t.Errorf("batches of the older one, and repairs of the newer one: %v, then %v", before, after)
	}
	if err := n.reaches(1); err != nil {
		t.Error(err)
	}
	newer.Kill()
	n.eventually(func() error { return n.reaches(0) })
	if got := older.metric("kubenftproxy_standing_by"); got != 0 {
		t.Errorf("kubenftproxy_standing_by is %v after the newer one has exited", got)
	}
}

// A newer instance that is not ready does not affect the older one, and breaks no connection when it becomes ready.
func TestANewerInstanceThatWaitsLetsTheOlderServe(t *testing.T) {
	n := newNode(t)
	older := n.start("kube-nftproxy", 1, 0)
	n.eventually(func() error { return n.reaches(0) })
	n.start("kube-nftproxy", 2, 0, "--master", "http://127.0.0.1:1")
	for pod := range 4 {
		older.serve(pod % 2)
		n.eventually(func() error { return n.reaches(pod % 2) })
	}
	if err := older.says("another instance"); err == nil {
		t.Error("the older one has stood back")
	}
	done := make(chan struct{})
	lost := 0
	go func() {
		defer close(done)
		for range 300 {
			if err := n.reaches(1); err != nil {
				lost++
			}
		}
	}()
	n.start("kube-nftproxy", 3, 1)
	n.eventually(func() error { return older.says("another instance") })
	if <-done; lost > 0 {
		t.Errorf("%d of 300 connections were lost while another instance took over", lost)
	}
}

// Tables of an unserved family are deleted. When the host gets the family again, the program exits for a restart.
func TestAFamilyThatIsAddedAndRemoved(t *testing.T) {
	n := newNode(t)
	first := n.start("kube-nftproxy", 1, 0)
	n.eventually(func() error { return n.reaches(0) })
	first.Kill()
	if tables := n.nft("list tables"); !strings.Contains(tables, "ip6 kube-nftproxy") {
		t.Fatalf("without a table of IPv6: %s", tables)
	}
	set := func(value string) {
		lab.Must(t, n.Node.Sysctl("ipv6/conf/all/disable_ipv6", value))
	}
	set("1")
	only4 := n.start("kube-nftproxy", 2, 1)
	n.eventually(func() error { return n.reaches(1) })
	n.eventually(func() error {
		if tables := n.nft("list tables"); strings.Contains(tables, "ip6 kube-nftproxy") {
			return errors.New(tables)
		}
		return nil
	})
	if got := only4.metric("kubenftproxy_repairs_total"); got != 0 {
		t.Errorf("%v repairs because of a table that it has deleted itself", got)
	}
	set("0")
	select {
	case <-only4.Ended():
	case <-time.After(time.Minute):
		t.Fatal("it doesn't exit when the host has IPv6")
	}
	if err := only4.Wait(); err == nil {
		t.Error("it exits with status 0")
	}
	if err := only4.says("this host has IPv6 now"); err != nil {
		t.Error(err)
	}
	n.start("kube-nftproxy", 3, 1)
	n.eventually(func() error {
		if tables := n.nft("list tables"); !strings.Contains(tables, "ip6 kube-nftproxy") {
			return errors.New(tables)
		}
		return nil
	})
}

// Only instances with the same service-proxy name agree which one serves.
func TestInstancesWithNames(t *testing.T) {
	n := newNode(t)
	others := []*process{n.start("kube-nftproxy", 1, 0), n.start("kube-nftproxy", 2, 0, "--service-proxy-name", "b")}
	older := n.start("kube-nftproxy", 3, 0, "--service-proxy-name", "a")
	synced := func(p *process) error { return p.says(`"Synced"`) }
	for _, p := range append(others, older) {
		n.eventually(func() error { return synced(p) })
	}
	newer := n.start("kube-nftproxy", 4, 0, "--service-proxy-name", "a")
	n.eventually(func() error { return older.says("another instance (kube-nftproxy, pid") })
	n.eventually(func() error { return synced(newer) })
	for _, p := range append(others, newer) {
		if got := p.metric("kubenftproxy_standing_by"); got != 0 {
			t.Errorf("%s stands by", p.Log())
		}
	}
	newer.Kill()
	n.eventually(func() error {
		if got := older.metric("kubenftproxy_standing_by"); got != 0 {
			return errors.New("the older one doesn't serve again")
		}
		return nil
	})
	for _, table := range []string{"kube-nftproxy", "kube-nftproxy-a", "kube-nftproxy-b"} {
		if list := n.nft("list tables"); strings.Count(list, " "+table+"\n") != 2 {
			t.Errorf("no two tables %s: %s", table, list)
		}
	}
	if err := n.reaches(0); err != nil {
		t.Error(err)
	}
}
