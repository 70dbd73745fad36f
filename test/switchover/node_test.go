//go:build twin

package switchover

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// mode is a mode of kube-proxy on a node.
type mode struct {
	name string
	// flag is the value of --proxy-mode.
	flag string
	// iptables is the program to which iptables, iptables-save and so on are links; empty if kube-proxy does not use them.
	iptables string
}

var modes = []mode{
	{name: "nftables", flag: "nftables"},
	{name: "iptables-nft", flag: "iptables", iptables: "xtables-nft-multi"},
	{name: "iptables-legacy", flag: "iptables", iptables: "xtables-legacy-multi"},
}

// node is the node of a lab, on which one of two programs runs.
type node struct {
	*lab.Lab
	*cluster
	// test is the test of all switches on this node.
	test *testing.T
	mode mode
	// dir has the programs' logs, tools the links to iptables.
	dir, tools string
	running    *program.Program
	// logged is the length of the log before the last start of a program.
	logged  int64
	traffic *traffic
	// foreign are the rules of other programs.
	foreign string
}

// newNode returns a lab whose node reaches the API server. The lab has servers and rules of other programs, and no proxy.
func newNode(t *testing.T, c *cluster, m mode) *node {
	t.Helper()
	n := &node{Lab: lab.ForTest(t, lab.Config{Pods: 4, Remotes: 1, Clients: 2}), cluster: c, test: t, mode: m, dir: t.TempDir()}
	forward, err := twin.Forward(n.Node, c.Server())
	lab.Must(t, err)
	t.Cleanup(func() {
		if err := forward.Close(); err != nil {
			t.Error(err)
		}
	})
	n.linkTools(t)
	serve(t, n.servers()...)
	n.addForeign(t)
	return n
}

// servers returns the endpoints of the Service web: two on this node and one on another node.
func (n *node) servers() []*lab.Host { return []*lab.Host{n.Pods[0], n.Pods[1], n.Remotes[0]} }

// caller returns a pod that is only a client.
func (n *node) caller() *lab.Host { return n.Pods[3] }

// linkTools creates the folder in which both programs find iptables.
func (n *node) linkTools(t *testing.T) {
	t.Helper()
	n.tools = filepath.Join(n.dir, "tools")
	lab.Must(t, os.Mkdir(n.tools, 0o700))
	if n.mode.iptables == "" {
		return
	}
	multi, err := exec.LookPath(n.mode.iptables)
	lab.Must(t, err)
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			lab.Must(t, os.Symlink(multi, filepath.Join(n.tools, name+suffix)))
		}
	}
}

// env returns the environment of the programs on this node. The default lock file of iptables-legacy belongs to the whole machine.
func (n *node) env() []string {
	return []string{
		"PATH=" + n.tools + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"XTABLES_LOCKFILE=" + filepath.Join(n.dir, "xtables.lock"),
	}
}

// exec runs a program on the node with this environment.
func (n *node) exec(t *testing.T, path string, args ...string) string {
	t.Helper()
	if found := filepath.Join(n.tools, path); !filepath.IsAbs(path) && exists(found) {
		path = found
	}
	cmd := n.Node.Command(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), n.env()...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", path, args, err, out)
	}
	return string(out)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// log returns the path of a program's log, to which each start appends.
func (n *node) log(path string) string { return filepath.Join(n.dir, filepath.Base(path)+".log") }

// launch starts a program. Both programs get the same flags, as from a DaemonSet whose image changes.
func (n *node) launch(path string) *program.Program {
	n.test.Helper()
	n.logged = 0
	if info, err := os.Stat(n.log(path)); err == nil {
		n.logged = info.Size()
	}
	return program.ForTest(n.test, program.Config{
		Host: n.Node, Path: path, Env: n.env(), Log: n.log(path),
		Args: program.Flags(n.kubeconfig, nodeName, "--proxy-mode="+n.mode.flag, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"),
	})
}

// settling is the timeout for actions that take a second on an idle machine.
const settling = 20 * time.Second

// start starts a program, and returns the time until its first sync.
func (n *node) start(t *testing.T, path string) time.Duration {
	t.Helper()
	n.running = n.launch(path)
	return n.running.Synced(t).Sub(n.running.Started())
}

// stop stops the program as the kubelet does, and waits for its exit.
func (n *node) stop(t *testing.T) { n.signal(t, syscall.SIGTERM) }

func (n *node) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if n.running == nil {
		return
	}
	lab.Must(t, n.running.Signal(s))
	_ = n.running.Wait() // SIGTERM kills kube-proxy, so the error is expected
	n.running = nil
}

// begin prepares a switch: the program runs, no rules of the other program are left, and traffic flows.
func (n *node) begin(t *testing.T, path string) {
	t.Helper()
	clean := n.leftKubeProxy(t) == "" || path == n.kubeProxy
	clean = clean && (n.leftOurs(t) == "" || path == n.ours)
	if n.running == nil || filepath.Base(path) != n.running.String() || !clean {
		n.stop(t)
		n.exec(t, n.ours, "--cleanup")
		n.exec(t, n.kubeProxy, "--cleanup")
		n.start(t, path)
	}
	if n.traffic != nil {
		return
	}
	var err error
	n.traffic, err = newTraffic(n.life, n.Client, n.Clients[1], []*lab.Host{n.Clients[1], n.Node, n.caller()}, targets())
	lab.Must(t, err)
}

// leftOurs lists the tables of kube-nftproxy.
func (n *node) leftOurs(t *testing.T) string {
	t.Helper()
	return grep(nft(t, n.Node, "list tables"), func(line string) bool { return strings.Contains(line, " kube-nftproxy") })
}

// leftKubeProxy lists kube-proxy's tables and chains, and the rules that lead to them.
func (n *node) leftKubeProxy(t *testing.T) string {
	t.Helper()
	tables := grep(nft(t, n.Node, "list tables"), func(line string) bool { return strings.HasSuffix(line, " kube-proxy") })
	return tables + grep(n.iptables(t), ofKubeProxy)
}

// iptables lists all rules of iptables in both families.
func (n *node) iptables(t *testing.T) string {
	t.Helper()
	if n.mode.iptables == "" {
		return ""
	}
	return n.exec(t, "iptables-save") + n.exec(t, "ip6tables-save")
}

// ofKubelet matches the names of the kubelet's chains. kube-proxy also adds rules to the first one, and its cleanup keeps this chain.
var ofKubelet = regexp.MustCompile("KUBE-FIREWALL|KUBE-KUBELET-CANARY|KUBE-IPTABLES-HINT")

// ofKubeProxy reports whether a line of iptables-save contains the name of a chain of kube-proxy.
func ofKubeProxy(line string) bool {
	return strings.Contains(ofKubelet.ReplaceAllString(line, ""), "KUBE-")
}

// grep returns the lines for which want returns true.
func grep(text string, want func(line string) bool) string {
	var out []string
	for line := range strings.Lines(text) {
		if want(strings.TrimSuffix(line, "\n")) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// addForeign creates rules and chains that neither program may change: rules of an administrator, a network plugin and a kubelet. They
// match only unused addresses. Without an address, they could match the traffic, because a masqueraded connection may have any port.
func (n *node) addForeign(t *testing.T) {
	t.Helper()
	nft(t, n.Node, `table inet admin {
		set blocked { type ipv4_addr; elements = { 203.0.113.9 } }
		chain forward { type filter hook forward priority 10; ip saddr @blocked drop; }
		chain prerouting { type nat hook prerouting priority dstnat; ip daddr 203.0.113.9 tcp dport 99 redirect to :98; }
	}`)
	if n.mode.iptables != "" {
		for name, addr := range map[string]string{"iptables": "203.0.113.9", "ip6tables": "2001:db8:9::9"} {
			for _, args := range []string{
				"-t nat -N CNI-HOSTPORT", "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT",
				"-t nat -A CNI-HOSTPORT -p tcp -s %s --dport 97 -j REDIRECT --to-ports 96", "-t nat -A POSTROUTING -d %s -j MASQUERADE",
				"-A FORWARD -d %s -j DROP", "-t mangle -A PREROUTING -d %s -j DROP",
				"-t mangle -N KUBE-KUBELET-CANARY", "-t mangle -N KUBE-IPTABLES-HINT",
			} {
				n.exec(t, name, append([]string{"-w"}, strings.Fields(strings.ReplaceAll(args, "%s", addr))...)...)
			}
		}
	}
	n.foreign = n.others(t)
}

// others lists all rules except the rules of the two programs.
func (n *node) others(t *testing.T) string {
	t.Helper()
	return nft(t, n.Node, "list table inet admin") + grep(n.iptables(t), func(line string) bool {
		return (strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-A")) && !ofKubeProxy(line) &&
			!strings.Contains(line, "KUBE-FIREWALL")
	})
}

// checkForeign fails if the rules of other programs have changed. It ignores the counters of iptables-save.
func (n *node) checkForeign(t *testing.T) {
	t.Helper()
	without := func(text string) []string {
		var out []string
		for line := range strings.Lines(text) {
			if chain, _, found := strings.Cut(line, " ["); found && strings.HasPrefix(line, ":") {
				line = chain
			}
			out = append(out, strings.TrimSpace(line))
		}
		return slices.DeleteFunc(out, func(l string) bool { return builtin(l) })
	}
	lab.Same(t, without(n.foreign), without(n.others(t)), "rules of other programs")
}

// builtin reports whether a line is a built-in chain. Built-in chains appear with the first rule of their table.
func builtin(line string) bool {
	return strings.HasPrefix(line, ":") && strings.HasSuffix(line, " ACCEPT")
}

// awaitGone waits until list returns nothing, and returns the duration. After settling, it returns the rest, too.
func awaitGone(t *testing.T, list func(*testing.T) string) (took time.Duration, left string) {
	t.Helper()
	for begin := time.Now(); ; sleepUntil(t.Context(), time.Now().Add(200*time.Millisecond)) {
		left, took = list(t), time.Since(begin)
		if left == "" || took > settling {
			return took, left
		}
	}
}

// lines returns the first n lines of a text, and the number of the others.
func lines(text string, n int) string {
	all := strings.SplitAfter(text, "\n")
	if len(all) <= n {
		return text
	}
	return fmt.Sprintf("%s… and %d more lines", strings.Join(all[:n], ""), len(all)-n)
}
