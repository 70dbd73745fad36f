//go:build twin

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// sysctls are the values of connection tracking that both programs may set, in a folder that replaces the machine's.
type sysctls struct {
	max, buckets, established, closeWait, liberal, udp, udpStream int
}

// fresh are values that differ from all defaults of kube-proxy.
var fresh = sysctls{max: 1000, buckets: 100, established: 432000, closeWait: 60, udp: 30, udpStream: 120}

// files maps file names to the values. kube-proxy sets the buckets as a parameter of the kernel module, which is the same value.
func (s *sysctls) files() map[string]*int {
	const prefix = "netfilter/nf_conntrack_"
	return map[string]*int{
		prefix + "max": &s.max, prefix + "buckets": &s.buckets, "parameters/hashsize": &s.buckets,
		prefix + "tcp_timeout_established": &s.established, prefix + "tcp_timeout_close_wait": &s.closeWait,
		prefix + "tcp_be_liberal": &s.liberal, prefix + "udp_timeout": &s.udp, prefix + "udp_timeout_stream": &s.udpStream,
	}
}

// TestSysctlsAreThoseOfKubeProxy makes both programs set sysctls in folders that are mounted over the kernel's.
func TestSysctlsAreThoseOfKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	must(t, err)
	w := newWorld(t, lab.Config{})
	for _, tc := range []struct {
		name   string
		before sysctls
		flags  string
		// written is the number of values that kube-proxy sets.
		written int
	}{
		{"defaults", fresh, "", 4},
		{"as they are already", sysctls{131072, 32768, 86400, 3600, 0, 30, 120}, "", 0},
		{"more than is needed", sysctls{5000000, 1250000, 999999, 9999, 1, 30, 120}, "", 2},
		{"nothing", fresh, "--conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0", 0},
		{"everything", fresh, "--conntrack-max-per-core=70000 --conntrack-min=5 --conntrack-tcp-timeout-established=5m --conntrack-tcp-timeout-close-wait=90s " +
			"--conntrack-udp-timeout=7s --conntrack-udp-timeout-stream=8s --conntrack-tcp-be-liberal", 7},
		{"a wish too far", fresh, "--conntrack-max-per-core=1000000 --conntrack-min=3000000", 4},
		{"a floor", fresh, "--conntrack-max-per-core=1 --conntrack-min=3000000", 4},
		{"fractions of seconds", fresh, "--conntrack-udp-timeout=7900ms", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			theirs := asked{world: w, path: filepath.Join(bin, "kube-proxy")}.in(t).setSysctls(tc.before, tc.flags)
			ours := asked{world: w, path: program}.in(t).setSysctls(tc.before, tc.flags)
			lab.Same(t, theirs, ours, "sysctls (-kube-proxy +ours)")
			if len(theirs) != tc.written {
				t.Errorf("kube-proxy writes %v, want %d of them", theirs, tc.written)
			}
		})
	}
}

// overKernel runs a command in a mount namespace; the first argument names the mounts.
func (a asked) overKernel(mounts string, args ...string) *proxy.Program {
	a.Helper()
	return proxy.ForTest(a.T, proxy.Config{Host: a.Node, Path: "/usr/bin/unshare", Args: append([]string{
		"--mount", "sh", "-ec", mounts + "\nexec \"$0\" \"$@\"", a.path, "--kubeconfig=" + a.kubeconfig(),
		"--hostname-override=" + nodeName, "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16",
	}, args...)})
}

// setSysctls runs the program with --init-only on folders with values, and returns the written values.
func (a asked) setSysctls(values sysctls, flags string) map[string]string {
	a.Helper()
	dir, long := a.TempDir(), time.Unix(1_700_000_000, 0)
	for file, value := range values.files() {
		path := filepath.Join(dir, file)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, fmt.Append(nil, *value, "\n"), 0o644), os.Chtimes(path, long, long))
		must(a, err)
	}
	p := a.overKernel(fmt.Sprintf("mount --bind %s/netfilter /proc/sys/net/netfilter\nmount --bind %[1]s/parameters /sys/module/nf_conntrack/parameters", dir),
		append(strings.Fields(flags), "--init-only")...)
	if err := p.Wait(); err != nil {
		a.Fatalf("%v: %s", err, p.LogTail(10))
	}
	written := map[string]string{}
	for file := range values.files() {
		info, err := os.Stat(filepath.Join(dir, file))
		must(a, err)
		if info.ModTime().Equal(long) {
			continue
		}
		text := mustRead(a, filepath.Join(dir, file))
		written[strings.Replace(file, "parameters/hashsize", "netfilter/nf_conntrack_buckets", 1)] = strings.TrimSpace(text)
	}
	return written
}

// TestReadOnlySysctlsUnlikeKubeProxy mounts /proc/sys read-only, as in a container without privileges. kube-proxy exits.
// kube-nftproxy logs this once and serves, and logs nothing if the values are right already.
func TestReadOnlySysctlsUnlikeKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	must(t, err)
	const readOnly = "mount --bind /proc/sys /proc/sys\nmount -o remount,bind,ro /proc/sys"
	w := newWorld(t, lab.Config{Pods: 2})
	w.serve(w.Pods[0])
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	theirs := asked{world: w, path: filepath.Join(bin, "kube-proxy")}.overKernel(readOnly, "--conntrack-max-per-core=0")
	if err := theirs.Wait(); err == nil || err.Error() != "exit status 1" || !strings.Contains(theirs.LogTail(3), "could not set conntrack parameters") {
		t.Errorf("kube-proxy ends with %v: %s", err, theirs.LogTail(3))
	}
	for flags, warnings := range map[string]int{
		"--conntrack-max-per-core=0": 1,
		"--conntrack-max-per-core=0 --conntrack-tcp-timeout-established=432000s --conntrack-tcp-timeout-close-wait=60s": 0,
	} {
		p := asked{world: w, path: program}.in(t).overKernel(readOnly, strings.Fields(flags)...)
		p.Synced(t)
		reach(t, w.Pods[1], w.clusterIPs("web")[0], "pod-0")
		d := &daemon{p, t}
		if said := d.lines("Conntrack is not configured as requested"); len(said) != warnings || len(d.lines("read-only file system")) < warnings || len(d.errors()) > 0 {
			t.Errorf("%s: %d warnings, want %d; errors %q:\n%s", flags, len(said), warnings, d.errors(), d.read())
		}
		p.Kill()
	}
}
