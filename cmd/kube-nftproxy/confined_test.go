package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// confineArgs, as the first argument, makes the test binary run the other arguments under a filter of system calls.
const confineArgs = "confine"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == confineArgs {
		fmt.Fprintln(os.Stderr, confined(os.Args[2:]))
		os.Exit(1)
	}
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// refused are the system calls that the profile RuntimeDefault of containerd and CRI-O rejects for a container with only the
// capability CAP_NET_ADMIN, on both architectures.
var refused = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE,
	unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_INIT_MODULE,
	unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL,
	unix.SYS_MBIND, unix.SYS_MIGRATE_PAGES, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOVE_PAGES,
	unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT, unix.SYS_QUOTACTL,
	unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY,
	unix.SYS_SET_MEMPOLICY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// confined replaces this program by another one under that filter. It returns only after an error.
func confined(args []string) error {
	runtime.LockOSThread() // the filter and the capabilities apply to one thread
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	const number, firstArgument, errno, allow = 0, 16, 0x00050000, 0x7fff0000
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{load(number)}
	for _, nr := range refused {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr}, answer(errno|uint32(unix.EPERM)))
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_CLONE3}, answer(errno|uint32(unix.ENOSYS)),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_CLONE},
		load(firstArgument), // its lower half: both architectures are little-endian
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: namespaces}, answer(errno|uint32(unix.EPERM)),
		answer(allow))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("set filter: %w", err)
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
// as a user with an inherited capability.
func TestConfined(t *testing.T) {
	for name, user := range map[string]string{"root": "0", "another user": "65532"} {
		t.Run(name, func(t *testing.T) {
			l := lab.ForTest(t, lab.Config{Pods: 1})
			dir, err := os.MkdirTemp("", "confined-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path, err := program.Build(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(oneService), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
				if _, err := l.Pods[0].Serve(p, 8080); err != nil {
					t.Fatal(err)
				}
			}
			test, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			p := program.ForTest(t, program.Config{Host: l.Node, Path: test, Args: []string{
				confineArgs, "setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--bounding-set", "-all,+net_admin",
				"--inh-caps", "-all,+net_admin", "--ambient-caps", "-all,+net_admin",
				path, "--manifests", dir, "--hostname-override", "node-1",
			}})
			p.Synced(t)
			for to, proto := range map[string]inet.Protocol{"10.96.0.10:80": inet.TCP, "10.96.0.10:53": inet.UDP, "192.0.2.1:30080": inet.TCP} {
				if a := l.Client.Probe(t.Context(), proto, netip.MustParseAddrPort(to), lab.Options{}); a.Server != "pod-0" {
					t.Errorf("%s %s: %+v, want an answer of pod-0", proto, to, a)
				}
			}
			const netAdmin = "0000000000001000"
			want := map[string]string{"Uid": user, "CapPrm": netAdmin, "CapEff": netAdmin, "CapBnd": netAdmin, "NoNewPrivs": "1", "Seccomp": "2"}
			if diff := cmp.Diff(want, status(t, p.Pid(), want)); diff != "" {
				t.Errorf("privileges of the program (-want +got):\n%s", diff)
			}
			for line := range strings.Lines(p.LogTail(1000)) {
				// Only root can read the names of the tables of iptables-legacy.
				if strings.HasPrefix(line, "E") && (user == "0" || !strings.Contains(line, "Failed to read or remove rules of kube-proxy")) {
					t.Errorf("an error: %s", p.LogTail(1000))
				}
			}
		})
	}
}

// status returns the first words of some fields of a process's status in /proc.
func status(t *testing.T, pid int, fields map[string]string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); fields[name] != "" {
			got[name] = strings.Fields(value)[0]
		}
	}
	return got
}
