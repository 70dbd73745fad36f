//go:build e2e

package image

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// command is the path by which kubeadm's DaemonSet calls the program.
const command = "/usr/local/bin/kube-proxy"

// checkRuns runs the program with the image as its whole file system, without even /proc.
func checkRuns(t *testing.T, root string) {
	for _, tc := range []struct{ args, want string }{
		{"--version", "kube-nftproxy " + version + "\n"},
		{"--help", "--proxy-mode"},
		{"--write-config-to=/config.conf", "Wrote configuration"},
	} {
		cmd := &exec.Cmd{
			Path: command, Args: []string{command, tc.args}, Dir: "/", Env: []string{}, SysProcAttr: &syscall.SysProcAttr{Chroot: root},
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: %v, want %q in:\n%s", tc.args, err, tc.want, out)
		}
	}
	written := filepath.Join(root, "config.conf")
	content, err := os.ReadFile(written)
	if err != nil || !strings.Contains(string(content), "kind: KubeProxyConfiguration") {
		t.Errorf("--write-config-to wrote (%v):\n%s", err, content)
	}
	lab.Must(t, os.Remove(written))
}

const manifests = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  ipFamilies: [IPv4]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  selector: {app: web}
  ports: [{name: http, protocol: TCP, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.244.0.10], nodeName: node-1}]
`

// checkServes runs the program as a container of our DaemonSet, in a lab, and reaches a Service through it.
func checkServes(t *testing.T, root string) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	server, err := l.Pods[0].Serve(inet.TCP, 8080)
	lab.Must(t, err)
	t.Cleanup(func() { server.Close() })
	dir := t.TempDir()
	container, err := kubelet.Build(t.Context(), dir)
	lab.Must(t, err)
	p := program.ForTest(t, program.Config{Host: l.Node, Path: container, Args: []string{mustSpec(t, root, dir)}})
	p.Synced(t)
	vip := netip.MustParseAddrPort("10.96.0.10:80")
	if a := l.Client.Probe(t.Context(), inet.TCP, vip, lab.Options{}); a.Outcome != lab.Answered || a.Server != "pod-0" {
		t.Errorf("the Service: %s, want an answer of pod-0", a)
	}
	checkLimits(t, p)
	lab.Must(t, p.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("it ended with %v, want status 0\n%s", err, p.LogTail(10))
	}
}

// mustSpec writes what the container is: the image, a folder with manifests, what a runtime mounts, and the security context
// of our DaemonSet.
func mustSpec(t *testing.T, root, dir string) string {
	t.Helper()
	var daemons appsv1.DaemonSet
	text, err := os.ReadFile(repository + "/deploy/base/daemonset.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &daemons)
	}
	lab.Must(t, err)
	security := daemons.Spec.Template.Spec.Containers[0].SecurityContext
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}
	if diff := cmp.Diff(want, security.Capabilities); diff != "" {
		t.Fatalf("capabilities of the DaemonSet, which the test has to give (-want +got):\n%s", diff)
	}
	folder := filepath.Join(dir, "manifests")
	for _, path := range []string{folder, root + "/manifests", root + "/proc", root + "/sys", root + "/dev"} {
		lab.Must(t, os.Mkdir(path, 0o755))
	}
	spec, err := json.Marshal(kubelet.Spec{
		Root: root, ReadOnlyRoot: *security.ReadOnlyRootFilesystem, NoNewPrivileges: !*security.AllowPrivilegeEscalation,
		Binds:        []kubelet.Bind{{From: folder, To: "/manifests", ReadOnly: true}},
		Args:         []string{command, "--manifests=/manifests", "--hostname-override=node-1"},
		Capabilities: []int{unix.CAP_NET_ADMIN},
	})
	lab.Must(t, err)
	file := filepath.Join(dir, "spec.json")
	for name, content := range map[string][]byte{
		filepath.Join(folder, "web.yaml"): []byte(manifests), root + "/dev/null": nil, file: spec,
	} {
		lab.Must(t, os.WriteFile(name, content, 0o644))
	}
	return file
}

// checkLimits makes sure that the program ran with no more than it was to have.
func checkLimits(t *testing.T, p *program.Program) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	lab.Must(t, err)
	for _, want := range []string{fmt.Sprintf("CapEff:\t%016x\n", 1<<unix.CAP_NET_ADMIN), "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("/proc/PID/status has no line %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.Pid()))
	lab.Must(t, err)
	var root string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[4] == "/" {
			root = f[5]
		}
	}
	if !strings.HasPrefix(root, "ro") {
		t.Errorf("the root is mounted %q, want ro", root)
	}
}
