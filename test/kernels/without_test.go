//go:build kernels

// Package kernels has the program run on kernels that lack something, and on a machine whose clock is set. It is for a virtual machine,
// hack/kernels.sh: modules are hidden, and in the end the machine loads none any more.
package kernels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestMain runs nothing on a machine that somebody may need.
func TestMain(m *testing.M) {
	if first, err := os.Readlink("/proc/1/exe"); err != nil || first != "/bin/busybox" {
		fmt.Fprintln(os.Stderr, "these tests unload modules and set the clock: run them in a virtual machine, by hack/kernels.sh")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const objects = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations: {kube-nftproxy.io/conntrack-timeouts: tcp=1h}
spec: {clusterIPs: [10.96.0.10], type: NodePort, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.10]}]
`

// outcome is what becomes of the program.
type outcome struct {
	// Tables are the families that have tables after the first sync; none if there was no sync.
	Tables string
	// Code is the exit code, -1 where the program had to be ended.
	Code int
}

var (
	both     = outcome{"ip ip6", -1}
	onlyIPv4 = outcome{"ip", -1}
	onlyIPv6 = outcome{"ip6", -1}
	ended    = outcome{"", 1}
)

func TestWithoutModules(t *testing.T) {
	if withoutIPv6() {
		t.Fatal("the machine was booted without IPv6")
	}
	for _, tc := range []struct {
		hidden string
		want   outcome
		said   []string // the words of one line
	}{
		{"", both, nil},
		{"nft_numgen", ended, []string{"the kernel lacks numgen random (module nft_numgen, CONFIG_NFT_NUMGEN):", "run modprobe -a nft_numgen;"}},
		{"nft_hash", both, []string{"The kernel lacks jhash (module nft_hash, CONFIG_NFT_HASH): the algorithm of all Services is random"}},
		{"nft_connlimit", both, []string{"The kernel lacks connlimit (module nft_connlimit, CONFIG_NFT_CONNLIMIT): " +
			"no endpoint has a connection limit"}},
		{"nft_objref", both, []string{"The kernel lacks objref (module nft_objref, CONFIG_NFT_OBJREF): " + // a module before Linux 6.2
			"all connections have the timeouts of the node", "modprobe -a nft_objref"}},
		{"nft_masq", ended, []string{"the kernel lacks masquerade (module nft_masq, CONFIG_NFT_MASQ):"}},
		{"nft_nat", ended, []string{"the kernel lacks dnat (module nft_nat, CONFIG_NFT_NAT):"}},
		{"nft_chain_nat", ended, []string{"the kernel lacks chains of type nat (module nft_chain_nat, CONFIG_NFT_NAT):"}},
		{"nft_ct", ended, []string{"the kernel lacks ct status (module nft_ct, CONFIG_NFT_CT):"}},
		{"nft_reject_ipv6", onlyIPv4, []string{"Services of an IP family are not served", "the kernel lacks reject (module nft_reject_ipv6,", `family="IPv6"`}},
		{"nft_reject_ipv4", onlyIPv6, []string{"Services of an IP family are not served", "the kernel lacks reject (module nft_reject_ipv4,", `family="IPv4"`}},
		{"nft_fib_ipv6", onlyIPv4, []string{"Services of an IP family are not served", "the kernel lacks fib (module nft_fib_ipv6,", `family="IPv6"`}},
		{"nft_reject", ended, []string{"the kernel lacks reject (module nft_reject_ipv4,", "(module nft_reject_ipv6,"}},
		{"nf_nat", ended, []string{"the kernel lacks chains of type nat", "masquerade", "dnat"}},
		{"nf_conntrack", ended, []string{"the kernel lacks chains of type nat", "ct status", "masquerade", "dnat"}},
		{"nf_conntrack_netlink", both, []string{"Failed to clear all conntrack entries, will retry",
			"the kernel's modules nf_conntrack and nf_conntrack_netlink are missing or cannot be loaded"}},
		{"nf_tables", ended, []string{"does the kernel have nf_tables (CONFIG_NF_TABLES, module nf_tables)?"}},
		{"nfnetlink", ended, []string{"does the kernel have nf_tables (CONFIG_NF_TABLES, module nf_tables)?"}},
	} {
		t.Run("without "+tc.hidden, func(t *testing.T) {
			unloadModules(t)
			hide(t, tc.hidden)
			check(t, tc.want, tc.said)
		})
	}
	t.Run("sysctl disable_ipv6", func(t *testing.T) {
		unloadModules(t)
		write(t, "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
		t.Cleanup(func() { write(t, "/proc/sys/net/ipv6/conf/all/disable_ipv6", "0") })
		check(t, onlyIPv4, []string{"Using nftables Proxier", "families=\"[IPv4]\""})
	})
	t.Run("no modules any more", func(t *testing.T) {
		unloadModules(t)
		for _, module := range []string{"nf_tables", "nft_ct"} {
			if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
				t.Fatalf("modprobe %s: %v: %s", module, err, out)
			}
		}
		write(t, "/proc/sys/kernel/modules_disabled", "1")
		check(t, ended, []string{"the kernel lacks chains of type nat", "numgen random", "kernel.modules_disabled prevents loading modules"})
	})
}

// In a machine that was booted with ipv6.disable=1 there are no sockets of IPv6.
func TestWithoutIPv6(t *testing.T) {
	if !withoutIPv6() {
		t.Fatal("the machine was booted with IPv6")
	}
	if fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_DGRAM, 0); !errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Fatalf("a socket of IPv6: %d, %v", fd, err)
	}
	check(t, onlyIPv4, []string{"Using nftables Proxier", "families=\"[IPv4]\""})
}

func withoutIPv6() bool {
	text, err := os.ReadFile("/proc/cmdline")
	return err == nil && strings.Contains(string(text), "ipv6.disable=1")
}

// check runs the program until it has synced or ended, and compares what has become of it; one of its lines, unless said is empty, has
// all of those words. Where it serves no line may be an error but that one. It serves again when it finds its tables.
func check(t *testing.T, want outcome, said []string) {
	t.Helper()
	checkStart(t, want, said)
	if want.Code < 0 {
		checkStart(t, want, said)
	}
}

func checkStart(t *testing.T, want outcome, said []string) {
	t.Helper()
	isSaid := func(line string) bool {
		return !slices.ContainsFunc(said, func(word string) bool { return !strings.Contains(line, word) })
	}
	got, log := run(t, isSaid)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome (-want +got):\n%s\n%s", diff, strings.Join(log, "\n"))
	}
	if !slices.ContainsFunc(log, isSaid) {
		t.Errorf("no line has the words %q:\n%s", said, strings.Join(log, "\n"))
	}
	for _, line := range log {
		if got.Code < 0 && strings.HasPrefix(line, "E") && (len(said) == 0 || !isSaid(line)) {
			t.Errorf("an error: %s", line)
		}
	}
}

// run runs the program until it has ended, or until it has synced and has logged a line that isSaid accepts.
func run(t *testing.T, isSaid func(string) bool) (o outcome, log []string) {
	t.Helper()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "objects.yaml"), objects)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "./kube-nftproxy", "--manifests", folder, "--hostname-override", "node-1")
	stderr, err := cmd.StderrPipe()
	lab.Must(t, err)
	lab.Must(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	synced, said, killed := false, false, false
	for lines.Scan() {
		log = append(log, lines.Text())
		synced = synced || strings.Contains(lines.Text(), `"Synced"`)
		if said = said || isSaid(lines.Text()); synced && said && !killed {
			killed = true
			o.Tables = tables(t)
			for _, command := range []string{"diff", "verify"} {
				if out, err := exec.Command("./kube-nftproxy", command).CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", command, err, out)
				}
			}
			lab.Must(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // its code is what counts
	o.Code = cmd.ProcessState.ExitCode()
	if ctx.Err() != nil {
		t.Fatalf("neither synced nor ended:\n%s", strings.Join(log, "\n"))
	}
	return o, log
}

// tables returns the families that have our table.
func tables(t *testing.T) string {
	t.Helper()
	conn, err := nft.Open()
	lab.Must(t, err)
	defer conn.Close() //nolint:errcheck // it was only read from
	var found []string
	for _, f := range inet.Families {
		there, err := conn.HasTable(f, plan.TableName)
		lab.Must(t, err)
		if there {
			found = append(found, f.Keyword())
		}
	}
	return strings.Join(found, " ")
}

// unloadModules makes the machine as it was before anybody used nftables.
func unloadModules(t *testing.T) {
	t.Helper()
	if loaded(t, "nf_tables") {
		if _, err := apply.Cleanup(""); err != nil {
			t.Fatal(err)
		}
	}
	for again := true; again; {
		again = false
		for _, name := range all(t) {
			if strings.HasPrefix(name, "nf") && unix.DeleteModule(name, 0) == nil {
				again = true
			}
		}
	}
}

// hide makes a module one that can't be found, until the test ends.
func hide(t *testing.T, name string) {
	t.Helper()
	if name == "" {
		return
	}
	if loaded(t, name) {
		t.Fatalf("module %s can't be unloaded", name)
	}
	found := false
	err := filepath.WalkDir("/lib/modules", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), name+".ko") {
			found = true
			t.Cleanup(func() {
				if err := os.Rename(path+".hidden", path); err != nil {
					t.Error(err)
				}
			})
			return os.Rename(path, path+".hidden")
		}
		return err
	})
	if err != nil {
		t.Fatalf("hide module %s: %v", name, err)
	}
	if !found { // as nfnetlink in kernels since 7
		t.Skipf("%s is no module here, but a part of the kernel", name)
	}
}

func all(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/modules")
	lab.Must(t, err)
	for line := range strings.Lines(string(text)) {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}

func loaded(t *testing.T, name string) bool {
	t.Helper()
	return slices.Contains(all(t), name)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
}
