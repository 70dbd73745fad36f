package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/seccomp"
)

// confineArgs, as the first argument, makes the test binary run the arguments after the next one under the filter of
// system calls in this file.
const confineArgs = "confine"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == confineArgs {
		fmt.Fprintln(os.Stderr, confined(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// runtimeDefault rejects what the profile RuntimeDefault of containerd and CRI-O rejects for a container with only the capability
// CAP_NET_ADMIN, on both architectures.
func runtimeDefault() seccomp.Profile {
	const reject, allow = "SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	refused := strings.Fields(`acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick
		init_module io_uring_enter io_uring_register io_uring_setup kexec_file_load kexec_load keyctl mbind migrate_pages mount mount_setattr move_mount
		move_pages nfsservctl open_by_handle_at open_tree perf_event_open pivot_root quotactl reboot request_key setdomainname sethostname setns
		settimeofday set_mempolicy swapoff swapon umount2 unshare userfaultfd vhangup`)
	return seccomp.Profile{DefaultAction: allow, Syscalls: []seccomp.Rule{
		{Names: refused, Action: reject, ErrnoRet: uint32(unix.EPERM)},
		{Names: []string{"clone3"}, Action: reject, ErrnoRet: uint32(unix.ENOSYS)},
		{Names: []string{"clone"}, Action: allow, Args: []seccomp.Arg{{Value: namespaces, Op: "SCMP_CMP_MASKED_EQ"}}},
		{Names: []string{"clone"}, Action: reject, ErrnoRet: uint32(unix.EPERM)},
	}}
}

// shipped is the profile in deploy/seccomp. It kills the program if the profile would reject a call, so that no call is missed.
func shipped(t *testing.T) seccomp.Profile {
	t.Helper()
	p, err := seccomp.Read("../../deploy/seccomp/kube-nftproxy.json")
	lab.Must(t, err)
	p.DefaultAction = "SCMP_ACT_KILL_PROCESS"
	p.Syscalls = append(p.Syscalls, seccomp.Rule{Names: []string{"unshare"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: uint32(unix.EPERM)}) // confined tries it
	return p
}

// confined replaces this program by another one under the filter in a file. It returns only after an error.
func confined(file string, args []string) error {
	runtime.LockOSThread() // the filter and the capabilities apply to one thread
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var filter seccomp.Filter
	if err := json.Unmarshal(text, &filter); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := filter.Install(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("the filter permits a forbidden call: %w", err)
	}
	return unix.Exec(path, args, os.Environ())
}

const oneService = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIPs: [10.96.0.10], type: NodePort, ports: [{port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}, {name: dns, port: 8080, protocol: UDP}]
endpoints: [{addresses: [10.244.0.10], nodeName: node-1}]
`

// TestConfined runs the program with CAP_NET_ADMIN only, under a filter that rejects system calls as for containers: as root, and
// as a user with an inherited capability. The profile in deploy/seccomp kills the program at the first call that it does not list.
func TestConfined(t *testing.T) {
	for name, c := range map[string]struct {
		user    string
		profile seccomp.Profile
	}{
		"root": {"0", runtimeDefault()}, "another user": {"65532", runtimeDefault()}, "seccomp": {"0", shipped(t)},
	} {
		t.Run(name, func(t *testing.T) {
			user := c.user
			l := lab.ForTest(t, lab.Config{Pods: 1})
			dir, err := os.MkdirTemp("", "confined-")
			lab.Must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			lab.Must(t, os.Chmod(dir, 0o755))
			path, err := program.Build(t.Context(), dir)
			lab.Must(t, err)
			lab.Must(t, os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(oneService), 0o644))
			filter, err := c.profile.Compile(t.Context())
			lab.Must(t, err)
			text, err := json.Marshal(filter)
			filterFile := filepath.Join(dir, "filter.json")
			lab.Must(t, errors.Join(err, os.WriteFile(filterFile, text, 0o644)))
			for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
				if _, err := l.Pods[0].Serve(p, 8080); err != nil {
					t.Fatal(err)
				}
			}
			test, err := os.Executable()
			lab.Must(t, err)
			privileges := []string{
				"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--bounding-set", "-all,+net_admin",
				"--inh-caps", "-all,+net_admin", "--ambient-caps", "-all,+net_admin",
			}
			confinement := []string{test, confineArgs, filterFile}
			command := slices.Concat(privileges, confinement) // deploy/seccomp has no calls for setpriv
			if user != "0" {
				command = slices.Concat(confinement, privileges) // only root can execute the test
			}
			command = append(command, path, "--manifests", dir, "--hostname-override", "node-1")
			p := program.ForTest(t, program.Config{Host: l.Node, Path: command[0], Args: command[1:]})
			p.Synced(t)
			for to, proto := range map[string]inet.Protocol{"10.96.0.10:80": inet.TCP, "10.96.0.10:53": inet.UDP, "192.0.2.1:30080": inet.TCP} {
				if a := l.Client.Probe(t.Context(), proto, netip.MustParseAddrPort(to), lab.Options{}); a.Server != "pod-0" {
					t.Errorf("%s %s: %+v, want an answer of pod-0", proto, to, a)
				}
			}
			const netAdmin = "0000000000001000"
			want := map[string]string{"Uid": user, "CapPrm": netAdmin, "CapEff": netAdmin, "CapBnd": netAdmin, "NoNewPrivs": "1", "Seccomp": "2"}
			lab.Same(t, want, status(t, p.Pid(), want), "privileges of the program")
			for line := range strings.Lines(p.LogTail(1000)) {
				// Only root can read the names of the tables of iptables-legacy.
				if strings.HasPrefix(line, "E") && (user == "0" || !strings.Contains(line, "Failed to read or remove rules of kube-proxy")) {
					t.Errorf("an error: %s", p.LogTail(1000))
				}
			}
		})
	}
}

// TestWithoutCapabilities runs the program as root without capabilities: it exits, and names the missing one.
func TestWithoutCapabilities(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), lab.Patience)
	defer cancel()
	out, err := l.Node.Command(ctx, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all",
		program.BuildForTest(t), "--manifests", t.TempDir(), "--hostname-override", "node-1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nftables needs the capability NET_ADMIN") {
		t.Errorf("%v, want an error that names the capability, in:\n%s", err, out)
	}
}

// status returns the first words of some fields of a process's status in /proc.
func status(t *testing.T, pid int, fields map[string]string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	lab.Must(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); fields[name] != "" {
			got[name] = strings.Fields(value)[0]
		}
	}
	return got
}
