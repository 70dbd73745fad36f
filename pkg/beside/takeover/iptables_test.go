package takeover

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// backend is one of the two backends of iptables.
type backend string

var backends = []backend{"nft", "legacy"}

func (b backend) kind() Kind { return Kind("iptables-" + string(b)) }

// run runs a command of iptables of this backend, such as iptables-restore.
func (b backend) run(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("xtables-"+string(b)+"-multi", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", b, args, err, stderr.Bytes())
	}
	return string(out)
}

var commands = []string{"iptables", "ip6tables"}

// restore adds the rules of a file for each family.
func (b backend) restore(t testing.TB, prefix string) {
	t.Helper()
	for _, c := range commands {
		b.run(t, testFile(t, prefix+c+".txt"), c+"-restore", "-n", "-c")
	}
}

// save lists all tables with counters.
func (b backend) save(t testing.TB) string {
	t.Helper()
	out := ""
	for _, c := range commands {
		out += c + "\n" + b.run(t, "", c+"-save", "-c")
	}
	return regexp.MustCompile("(?m)^#.*\n").ReplaceAllString(out, "")
}

// more appends another program's rules after kube-proxy's.
func (b backend) more(t testing.TB) {
	t.Helper()
	for _, c := range commands {
		for _, args := range []string{
			"-t nat -A PREROUTING -p udp -m udp --dport 99 -j REDIRECT --to-ports 9", "-t nat -A OUTPUT -j CNI-HOSTPORT-DNAT",
			"-t filter -I FORWARD -j empty", "-t filter -A FORWARD -j cali-FORWARD", "-t mangle -N late", "-t filter -N late", "-t filter -A late -j z-last",
			"-t filter -A a-first -j late",
		} {
			b.run(t, "", append([]string{c, "-w"}, strings.Fields(args)...)...)
		}
	}
	b.countPolicies(t)
}

// countPolicies sets the counters of built-in chains to those of another file. iptables-legacy-restore resets the
// counters of chains that its file lacks.
func (b backend) countPolicies(t testing.TB) {
	t.Helper()
	rules := regexp.MustCompile("(?m)^([-[].*|:.* - .*)\n")
	for _, c := range commands {
		b.run(t, rules.ReplaceAllString(testFile(t, "foreign-"+c+".txt"), ""), c+"-restore", "-n", "-c")
	}
}

func testFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	lab.Must(t, err)
	return string(text)
}

func command(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// kubeProxy creates the iptables rules of a mode of kube-proxy, as a real kube-proxy has written them.
func kubeProxy(t testing.TB, b backend, mode string) {
	t.Helper()
	switch mode {
	case "iptables":
		for _, name := range []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"} {
			makeAccount(t, name)
		}
		b.restore(t, "")
	case "ipvs":
		command(t, testFile(t, "ipvs-ipset.txt"), "ipset", "restore")
		b.restore(t, "ipvs-")
	}
}

// makeAccount creates an nfacct object, to which a rule of mode iptables refers by its name.
func makeAccount(t testing.TB, name string) {
	t.Helper()
	const subsystem, newAccount, accountName = 7, 0, 1
	r := nl.NewNetlinkRequest(subsystem<<8|newAccount, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	r.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(accountName, nl.ZeroTerminated(name)))
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatalf("make account %s: %v", name, err)
	}
}

// generation returns the number of commits to the ruleset of nftables so far.
func generation(t testing.TB) uint32 {
	t.Helper()
	conn, err := nft.Open()
	lab.Must(t, err)
	defer conn.Close()
	g, err := conn.Generation()
	lab.Must(t, err)
	return g
}

func look(t testing.TB) Leftovers {
	t.Helper()
	l, err := Look(nil)
	lab.Must(t, err)
	return l
}

// logged returns a logger, and a function that returns its output.
func logged(t testing.TB) (klog.Logger, func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return logger, logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

// After the removal, all other rules equal those of a node without kube-proxy, in order, data and counters.
func TestOnlyKubeProxysRulesAreRemoved(t *testing.T) {
	for _, b := range backends {
		for _, mode := range []string{"iptables", "ipvs"} {
			t.Run(string(b)+" "+mode, func(t *testing.T) {
				lab.EnterNamespace(t)
				b.restore(t, "foreign-")
				b.more(t)
				want := b.save(t)

				lab.EnterNamespace(t)
				b.restore(t, "foreign-")
				kubeProxy(t, b, mode)
				b.more(t)
				if there := look(t); there[b.kind()] < 20 {
					t.Fatalf("leftovers %v, want at least 20 of %s", there, b.kind())
				}
				before := generation(t)
				logger, log := logged(t)
				if busy, err := remove(newNotes(logger), nil, true); err != nil || busy != 0 {
					t.Fatal(busy, err)
				}
				if diff := cmp.Diff(want, b.save(t)); diff != "" {
					t.Errorf("rules afterwards (-want +got):\n%s", diff)
				}
				if there := look(t); there.any() {
					t.Errorf("leftovers: %v", there)
				}
				if batches := int(generation(t) - before); b == "nft" && batches != len(inet.Families) {
					t.Errorf("%d batches for %d families", batches, len(inet.Families))
				}
				if strings.Count(log(), "Removed leftovers of kube-proxy") < 4 || strings.Contains(log(), "Keeping a chain") ||
					strings.Count(log(), "The policy of chain FORWARD is drop") != len(inet.Families) {
					t.Errorf("log:\n%s", log())
				}
				// A second removal is no error, and changes nothing.
				before = generation(t)
				if err := Cleanup(logger, nil); err != nil {
					t.Error(err)
				}
				if generation(t) != before || b.save(t) != want {
					t.Error("a second run changed something")
				}
			})
		}
	}
}

func TestPartlyRemovedStates(t *testing.T) {
	jumps := regexp.MustCompile("(?m)^.*-A (INPUT|FORWARD|OUTPUT|PREROUTING|POSTROUTING) .*\n")
	rules := regexp.MustCompile("(?m)^.*-A KUBE-.*\n")
	for _, b := range backends {
		for _, tc := range []struct {
			name string
			edit func(text string) string
			kept []string
			// nft is a change that iptables cannot make.
			nft string
		}{
			{name: "no jumps", edit: func(s string) string { return jumps.ReplaceAllString(s, "") }},
			{name: "empty chains", edit: func(s string) string { return rules.ReplaceAllString(s, "") }},
			{name: "canaries only", edit: func(string) string {
				return "*nat\n:KUBE-PROXY-CANARY -\nCOMMIT\n*mangle\n:KUBE-PROXY-CANARY -\nCOMMIT\n"
			}},
			{name: "a duplicate jump", edit: func(s string) string {
				return strings.Replace(s, "*nat\n", "*nat\n:KUBE-SERVICES -\n-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n", 1)
			}},
			{name: "another program uses a chain", edit: func(s string) string {
				return s + "*nat\n:mine -\n-A mine -p tcp -j KUBE-MARK-MASQ\n-A POSTROUTING -o eth9 -g KUBE-MARK-MASQ\nCOMMIT\n"
			}, kept: []string{"KUBE-MARK-MASQ"}},
			{name: "a map uses a chain", edit: func(s string) string { return s }, nft: "add map %[1]s nat m { type inet_service : verdict; }; " +
				"add element %[1]s nat m { 80 : jump KUBE-MARK-MASQ }", kept: []string{"KUBE-MARK-MASQ"}},
		} {
			if tc.nft != "" && b != "nft" {
				continue
			}
			t.Run(fmt.Sprintf("%s %s", b, tc.name), func(t *testing.T) {
				lab.EnterNamespace(t)
				for _, name := range []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"} {
					makeAccount(t, name)
				}
				for _, c := range commands {
					b.run(t, tc.edit(testFile(t, c+".txt")), c+"-restore", "-n", "-c")
				}
				if tc.nft != "" {
					for _, f := range inet.Families {
						command(t, "", "nft", fmt.Sprintf(tc.nft, f.Keyword()))
					}
				}
				if !look(t).any() {
					t.Fatal("no object of kube-proxy was found")
				}
				logger, log := logged(t)
				lab.Must(t, Cleanup(logger, nil))
				left := map[string]bool{}
				for _, m := range regexp.MustCompile(`(?m)^:(KUBE-\S+)`).FindAllStringSubmatch(b.save(t), -1) {
					left[m[1]] = true
				}
				want := map[string]bool{}
				for _, name := range tc.kept {
					want[name] = true
					lab.Contains(t, log(), "text", name)
				}
				if diff := cmp.Diff(want, left); diff != "" {
					t.Errorf("chains left (-want +got):\n%s", diff)
				}
				// The remaining chain does not count, because a kubelet may have created it.
				if there := look(t); there.any() {
					t.Errorf("leftovers: %v", there)
				}
			})
		}
	}
}

// If the kernel rejects the removal, the error has a command. The command has the same effect, and also removes jumps
// of other programs to kube-proxy's chains.
func TestTheCommandToRunByHand(t *testing.T) {
	const b = backend("legacy")
	lab.EnterNamespace(t)
	b.restore(t, "foreign-")
	want := b.save(t)
	kubeProxy(t, b, "iptables")
	for _, p := range protocols {
		list, err := p.tables()
		if err != nil || len(list) != len(tables) {
			t.Fatalf("tables %v, %v", list, err)
		}
		for _, table := range list {
			script := strings.NewReplacer("iptables-legacy-", "xtables-legacy-multi iptables-", "ip6tables-legacy-", "xtables-legacy-multi ip6tables-").
				Replace(p.byHand(table))
			command(t, "", "sh", "-c", script)
		}
	}
	b.countPolicies(t)
	if diff := cmp.Diff(want, b.save(t)); diff != "" {
		t.Errorf("rules afterwards (-want +got):\n%s", diff)
	}
}
