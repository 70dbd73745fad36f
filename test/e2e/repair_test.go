//go:build e2e

package e2e

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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	ruletable "github.com/kube-nftproxy/kube-nftproxy/pkg/nft"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
	objects "github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// faults are changes of the tables by another program, as nft's commands, with the expected reason in the log.
var faults = []struct{ name, command, why string }{
	{"flush ruleset", "flush ruleset", "there is no table ip kube-nftproxy"},
	{"a table deleted", "delete table ip6 kube-nftproxy", "there is no table ip6 kube-nftproxy"},
	{"a firewall's reload", "flush ruleset; add table inet firewalld; add chain inet firewalld filter { type filter hook input priority 10; }; " +
		"add rule inet firewalld filter ct state established accept", "there is no table"},
	{"a table switched off", "add table ip kube-nftproxy { flags dormant; }", "is dormant"},
	{"a base chain deleted", "flush chain ip kube-nftproxy output; delete chain ip kube-nftproxy output", "chain output is missing"},
	{"a chain emptied", "flush chain ip kube-nftproxy services", "chain services"},
	{"a chain added", "add chain ip kube-nftproxy foreign", "is an unknown chain"},
	{"a base chain added", "add chain ip kube-nftproxy foreign-base { type filter hook forward priority 0; policy drop; }", "is an unknown chain"},
	{"a base chain's policy", "add chain ip kube-nftproxy prerouting { policy drop; }", "chain prerouting"},
	{"a base chain's priority", "flush chain ip kube-nftproxy prerouting; delete chain ip kube-nftproxy prerouting; " +
		"add chain ip kube-nftproxy prerouting { type nat hook prerouting priority 50; }", "chain prerouting"},
	{"a rule deleted", "delete rule ip kube-nftproxy endpoints-of-1 handle %HANDLE%", "endpoints-of-1"},
	{"a rule added", "insert rule ip kube-nftproxy services counter drop", "chain services"},
	{"a rule replaced", "replace rule ip kube-nftproxy endpoints-of-1 handle %HANDLE% accept comment %COMMENT%", "endpoints-of-1"},
	{"a set added", "add set ip6 kube-nftproxy foreign { type ipv6_addr; }", "is an unknown set"},
	{"a map emptied", "flush map ip kube-nftproxy services", "services"},
	{"a map of another form", "flush table ip kube-nftproxy; delete set ip kube-nftproxy hairpin; " +
		"add set ip kube-nftproxy hairpin { type ipv4_addr; }", "hairpin"},
	{"an element deleted", "delete element ip kube-nftproxy services { 10.96.0.10 . tcp . 80 }", "services"},
	{"an element added", "add element ip kube-nftproxy endpoints { tcp . %NUMBER% . 7 : 10.0.0.1 . 99 }", "endpoints"},
	{"a value altered", "delete element ip kube-nftproxy endpoints { tcp . %NUMBER% . 0 }; " +
		"add element ip kube-nftproxy endpoints { tcp . %NUMBER% . 0 : 10.0.0.1 . 99 }", "endpoints"},
	{"a class altered", "delete element ip6 kube-nftproxy services { fd00:10:96::a . tcp . 80 }; " +
		"add element ip6 kube-nftproxy services { fd00:10:96::a . tcp . 80 : 1000:2 }", "services"},
	{"a range altered", "delete element ip kube-nftproxy service-cidrs { 10.96.0.0/16 }; " +
		"add element ip kube-nftproxy service-cidrs { 10.96.0.0/24 }", "service-cidrs"},
	{"the lease deleted", "flush set ip kube-nftproxy lease", "lease"},
	{"the state deleted", "flush set ip kube-nftproxy state", "its element state is missing"},
	{"a table created by hand",
		"delete table ip kube-nftproxy; add table ip kube-nftproxy; add chain ip kube-nftproxy services", "is missing"},
}

// TestRepair makes all kinds of foreign changes of the tables. Within a second the tables are as before, after one counted batch,
// and the log has the reason and the author. REPAIRS=20 repeats it.
func TestRepair(t *testing.T) {
	times := lab.Setting(t, "REPAIRS", 1)
	w := newRepaired(t)
	w.want = ruleset(t, w.Node)
	w.listens(t)
	var took []time.Duration
	for range times {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) { took = append(took, w.repair(t, f.command, f.why, "lastChangedBy=\"nft (pid ")) })
		}
	}
	if t.Failed() {
		return
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100].Round(time.Millisecond) }
	t.Logf("%d repairs: median %v, p90 %v, p99 %v, longest %v", len(took), at(50), at(90), at(99), at(100))
	if p99 := at(99); p99 > time.Second {
		t.Errorf("p99 %v, want a second", p99)
	}
}

// TestTheFirstChangeInAQuietTime changes the tables while the program does not listen. It notices the change by the generation of
// the ruleset, and reads all elements.
func TestTheFirstChangeInAQuietTime(t *testing.T) {
	for _, f := range faults {
		if f.name == "flush ruleset" || f.name == "a value altered" {
			t.Run(f.name, func(t *testing.T) {
				w := newRepaired(t)
				w.want = ruleset(t, w.Node)
				if took := w.repair(t, f.command, "lastChangedBy="); took > 3*time.Second {
					t.Errorf("repaired after %v, want less than 3 s", took)
				}
			})
		}
	}
}

// listens waits until the program listens for foreign changes, after the first one.
func (w *repaired) listens(t *testing.T) {
	t.Helper()
	before := w.metrics(t)[checks]
	nft(t, w.Node, "add table inet first; delete table inet first")
	w.await(t, "the first foreign change to be looked at", func() error {
		if w.metrics(t)[checks] == before {
			return errors.New("no check")
		}
		return nil
	})
}

// TestHarmlessChangesOfOthers: other programs' changes of their own tables are checked and have no effect.
func TestHarmlessChangesOfOthers(t *testing.T) {
	w := newRepaired(t)
	before := w.metrics(t)
	generation := w.generation(t)
	const commands = 3
	for i := range commands {
		nft(t, w.Node, fmt.Sprintf("add table inet other-%d; add chain inet other-%d c; add rule inet other-%d c accept", i, i, i))
		w.await(t, "the change to be looked at", func() error {
			if now := w.metrics(t)[checks]; now < before[checks]+float64(i)+1 {
				return fmt.Errorf("%v checks", now)
			}
			return nil
		})
	}
	after := w.metrics(t)
	for _, name := range []string{`kubenftproxy_batches_total{kind="full"}`, repairs} {
		if after[name] != before[name] {
			t.Errorf("%s changed from %v to %v", name, before[name], after[name])
		}
	}
	if now := w.generation(t); now != generation+commands {
		t.Errorf("generation %d became %d by %d commits of others", generation, now, commands)
	}
}

const (
	checks  = `kubenftproxy_checks_total{reason="foreign_change"}`
	repairs = `kubenftproxy_repairs_total{reason="foreign_change"}`
)

// TestFlowsOpenedInTheGapRecover stops the program while its tables are missing, so that untranslated flows begin, and then
// continues it.
func TestFlowsOpenedInTheGapRecover(t *testing.T) {
	w := newRepaired(t)
	client := w.Pods[1]
	// Other rules make the kernel track connections and decide on their translation.
	nft(t, w.Node, "add table inet other; add chain inet other c { type nat hook prerouting priority -100; }; "+
		"add rule inet other c ct state new counter")
	// The first pass over the flows must finish before. If it were stopped, it would appear slow, and the next one would wait for
	// long.
	w.await(t, "the first pass over the flows", func() error {
		if n, _ := w.metrics(t).Sum("kubenftproxy_conntrack_passes_total"); n < 2 {
			return fmt.Errorf("%v passes", n)
		}
		return nil
	})
	must(t, w.Signal(syscall.SIGSTOP))
	nft(t, w.Node, "delete table ip kube-nftproxy; delete table ip6 kube-nftproxy")
	for _, to := range w.ips {
		conn, err := client.Dial(t.Context(), inet.UDP, to)
		must(t, err)
		defer conn.Close() //nolint:errcheck // unused from here on
		if got := ask(conn); got == "pod-0" {
			t.Fatalf("%s is answered without rules", to)
		}
		defer func() {
			eventually(t, 2*time.Second, func() error {
				if got := ask(conn); got != "pod-0" {
					return fmt.Errorf("the flow to %s that began in the gap is answered by %q", to, got)
				}
				return nil
			})
		}()
	}
	must(t, w.Signal(syscall.SIGCONT))
}

// repaired is a node with the program, which follows a folder.
type repaired struct {
	*lab.Lab
	*daemon
	kernel *ruletable.Conn
	ips    []netip.AddrPort
	want   []string
}

func newRepaired(t *testing.T) *repaired {
	t.Helper()
	w := &repaired{Lab: lab.ForTest(t, lab.Config{Pods: 2})}
	for _, proto := range protocols {
		serve(t, proto, backendPort, w.Pods[0])
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, "manifests")
	must(t, os.Mkdir(folder, 0o700))
	svc := balanced()
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.10", []string{"10.96.0.10", "fd00:10:96::a"}
	svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/64"}
	sticky := service("sticky", corev1.IPv4Protocol, corev1.IPv6Protocol)
	sticky.Spec.ClusterIP, sticky.Spec.ClusterIPs = "10.96.0.11", []string{"10.96.0.11", "fd00:10:96::b"}
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	items := []runtime.Object{svc, sticky, objects.ServiceCIDR(), node()}
	for i, e := range endpointsOf(w.Pods[0]) {
		for _, name := range []string{"web", "sticky"} {
			items = append(items, slice(name, fmt.Sprintf("%s-%d", name, i), e))
		}
	}
	must(t, objects.Write(folder, "all", items...))
	w.daemon = run(t, proxy.Config{Host: w.Node, Path: program, Args: []string{
		"--manifests", folder, "--hostname-override", nodeName, "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-v", "2",
	}})
	w.awaitIdle(patience)
	w.ips = []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("[fd00:10:96::a]:80")}
	for _, ip := range w.ips {
		reach(t, w.Pods[1], ip, "pod-0")
	}
	must(t, w.Node.Do(func() (err error) { w.kernel, err = ruletable.Open(); return err }))
	t.Cleanup(func() { _ = w.kernel.Close() })
	return w
}

// uncommented removes comments: the kernel does not change the comment of an existing table or chain.
func uncommented(listing []string) (out []string) {
	for _, line := range listing {
		out = append(out, comments.ReplaceAllString(line, "{ "))
	}
	return out
}

var comments = regexp.MustCompile(`\{ comment "[^"]*" `)

func (w *repaired) generation(t *testing.T) uint32 {
	t.Helper()
	g, err := w.kernel.Generation()
	must(t, err)
	return g
}

func (w *repaired) metrics(t *testing.T) proxy.Samples {
	t.Helper()
	m, err := w.scrape()
	must(t, err)
	return m
}

func (w *repaired) await(t *testing.T, what string, check func() error) {
	t.Helper()
	if err := await(t.Context(), patience, check); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// repair makes a change, waits for a commit of the program and the given texts in its log, and returns the time that took. The change may be two commits of nft,
// and the program may see the first one.
func (w *repaired) repair(t *testing.T, command string, logs ...string) time.Duration {
	t.Helper()
	before := w.metrics(t)
	logged := len(w.read())
	if strings.Contains(command, "%") {
		handle, comment := w.ruleOf(t, "endpoints-of-1")
		number := ""
		for _, line := range w.want {
			if m := heads.FindStringSubmatch(line); m != nil && strings.HasPrefix(line, "ip map services: 10.96.0.10 . tcp . 80 ") {
				number = numberOf(word(m[4]))
			}
		}
		command = strings.NewReplacer("%HANDLE%", handle, "%COMMENT%", comment, "%NUMBER%", number).Replace(command)
	}
	generation := w.generation(t)
	begin := time.Now()
	nft(t, w.Node, command)
	var repairedAt time.Time
	for repairedAt.IsZero() {
		// One commit of nft, one of the program.
		if g := w.generation(t); g-generation >= 2 {
			repairedAt = time.Now()
		}
		if time.Since(begin) > patience {
			t.Fatalf("nothing was done about it in %v; the log since:\n%s", patience, w.read()[logged:])
		}
		time.Sleep(time.Millisecond)
	}
	eventually(t, time.Second, func() error {
		after := w.metrics(t)
		return errors.Join(grew(before, after, `kubenftproxy_batches_total{kind="full"}`), grew(before, after, repairs))
	})
	// An unused chain may stay for two seconds.
	eventually(t, 4*time.Second, func() error {
		if diff := cmp.Diff(uncommented(w.want), uncommented(ruleset(t, w.Node))); diff != "" {
			return fmt.Errorf("the tables (-before +after the repair):\n%s", diff)
		}
		return nil
	})
	for _, ip := range w.ips {
		if err := reached(t.Context(), w.Pods[1], inet.TCP, ip, "pod-0"); err != nil {
			t.Error(err)
		}
	}
	line := w.read()[logged:]
	lab.Contains(t, line, "the log", logs...)
	if bad := w.errors(); len(bad) > 0 {
		t.Errorf("errors in the log: %q", bad)
	}
	return repairedAt.Sub(begin)
}

// grew returns an error unless a counter has increased by one.
func grew(before, after proxy.Samples, name string) error {
	if n := after[name] - before[name]; n != 1 {
		return fmt.Errorf("%s grew by %v, want 1", name, n)
	}
	return nil
}

// ruleOf returns handle and comment of a chain's last rule with a comment.
func (w *repaired) ruleOf(t *testing.T, chain string) (handle, comment string) {
	t.Helper()
	for line := range strings.Lines(nft(t, w.Node, "-a", "list", "chain", "ip", "kube-nftproxy", chain)) {
		if rule, number, _ := strings.Cut(line, " # handle "); strings.Contains(rule, " comment ") {
			_, comment, _ = strings.Cut(rule, " comment ")
			handle = strings.TrimSpace(number)
		}
	}
	return handle, comment
}
