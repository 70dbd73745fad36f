//go:build e2e || twin

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// site is a world with a kubelet on its node, and an operator with a checkout and the original kubectl and kubeadm.
type site struct {
	*world
	kubelet *kubelet.Kubelet
	// checkout is an editable copy of the operator's part of this repository.
	checkout string
	// environ is the environment of the operator's commands.
	environ []string
	// audit is the API server's audit log of the pods' ServiceAccounts.
	audit string
}

// ourImage is the name of the program's image in the site.
const ourImage = "registry.example.com/kube-nftproxy"

// setImage is an operator's edit of deploy/base, without which no pod starts.
const setImage = "sed -i 's|newName: IMAGE$|newName: " + ourImage + "|' deploy/base/kustomization.yaml\n"

// auditPolicy logs each request of the two ServiceAccounts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:kube-system:kube-nftproxy", "system:serviceaccount:kube-system:kube-proxy"]
  - level: None
`

// allowPrivileged is a flag of the API server that every real cluster sets. The manifests in deploy/ do not need it.
const allowPrivileged = "--allow-privileged=true"

// newSite starts a cluster in which pods can run. images are additional ones by name, flags are the API server's.
func newSite(t *testing.T, c lab.Config, images map[string]kubelet.Image, flags ...string) *site {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	s := &site{checkout: filepath.Join(dir, "checkout"), audit: filepath.Join(dir, "audit.log")}
	bin, err := cluster.Build(t.Context(), os.Stderr, "kubectl", "kubeadm")
	err = errors.Join(err,
		os.WriteFile(policy, []byte(auditPolicy), 0o600),
		os.CopyFS(filepath.Join(s.checkout, "deploy"), os.DirFS("../../deploy")))
	must(t, err)
	s.world = ownWorld(t, c, append(flags, "--audit-policy-file="+policy, "--audit-log-path="+s.audit)...)
	labelled := node()
	labelled.Labels = map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH, corev1.LabelHostname: nodeName}
	s.apply(labelled)
	kubeconfig := filepath.Join(dir, "admin.conf")
	ours := kubelet.Image{
		Root: filepath.Join(dir, "image"), Entrypoint: []string{"/usr/local/bin/kube-nftproxy"}, Env: []string{"PATH=/usr/local/bin"},
	}
	container, err := kubelet.Build(t.Context(), dir)
	err = errors.Join(err, s.api.Kubeconfig(kubeconfig, true), imageOf(ours.Root, program))
	must(t, err)
	s.environ = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+dir)
	all := map[string]kubelet.Image{ourImage: ours}
	for name, image := range images {
		all[name] = image
	}
	s.kubelet, err = kubelet.Start(kubelet.Config{
		Cluster: s.api, Host: s.Node, Node: nodeName, Dir: filepath.Join(dir, "kubelet"), Container: container, Images: all,
	})
	must(t, err)
	t.Cleanup(func() {
		s.kubelet.Stop()
		if t.Failed() {
			s.showLogs(filepath.Join(dir, "kubelet"))
		}
	})
	s.sh(setImage)
	return s
}

// imageOf creates the content of the program's image in a folder: the program, and a link to it at kube-proxy's path.
func imageOf(root, program string) error {
	dir := filepath.Join(root, "usr/local/bin")
	return errors.Join(copyFile(program, filepath.Join(dir, "kube-nftproxy")), os.Symlink("kube-nftproxy", filepath.Join(dir, "kube-proxy")))
}

// copyFile copies a program, and creates the folders above it.
func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o755))
}

// showLogs writes the ends of the containers' logs.
func (s *site) showLogs(dir string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "*", "*", "log"))
	for _, file := range logs {
		text, _ := os.ReadFile(file)
		lines := strings.SplitAfter(string(text), "\n")
		s.Logf("end of %s:\n%s", file, strings.Join(lines[max(0, len(lines)-25):], ""))
	}
}

// sh runs an operator's commands on the node, in the checkout, and returns their output.
func (s *site) sh(script string) string {
	s.Helper()
	out, err := s.try(script)
	if err != nil {
		s.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

// try does the same as sh for commands that may fail.
func (s *site) try(script string) (out string, err error) {
	cmd := s.Node.Command(s.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = s.checkout, s.environ
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// kubeadm applies the objects that the original kubeadm creates for kube-proxy.
func (s *site) kubeadm(flags string) {
	s.Helper()
	s.sh(fmt.Sprintf("kubeadm init phase addon kube-proxy --print-manifest %s | kubectl apply -f -", flags))
}

// createPod creates a pod on the node that does not run.
func (s *site) createPod(name string) {
	s.Helper()
	_, err := s.api.Client().CoreV1().Pods(metav1.NamespaceDefault).Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: name, Image: "none"}}},
	}, metav1.CreateOptions{})
	must(s, err)
}

// pod waits until one pod with this label k8s-app is ready and no other one exists, and returns it with its program.
func (s *site) pod(app string) (*corev1.Pod, *daemon) {
	s.Helper()
	var p *corev1.Pod
	var d *daemon
	eventually(s, patience, func() error {
		list, err := s.api.Client().CoreV1().Pods("kube-system").List(s.Context(), metav1.ListOptions{LabelSelector: "k8s-app=" + app})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d pods %s", len(list.Items), app)
		}
		p = &list.Items[0]
		running := s.kubelet.Program(p, p.Spec.Containers[0].Name)
		if running == nil || !podReady(p) {
			status, _ := json.Marshal(p.Status)
			return fmt.Errorf("pod %s isn't ready: %s", p.Name, status)
		}
		if running.Exited() {
			return errors.New("its program has ended")
		}
		d = &daemon{running, s.T}
		return nil
	})
	return p, d
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// request is an entry of the audit log.
type request struct {
	Verb   string
	Object struct {
		Resource string
		APIGroup string
	} `json:"objectRef"`
	URI      string `json:"requestURI"`
	User     struct{ Username string }
	Response struct{ Code int } `json:"responseStatus"`
	At       time.Time          `json:"requestReceivedTimestamp"`
}

// requests returns the requests of the pods' ServiceAccounts since a time.
func (s *site) requests(since time.Time) (list []request) {
	s.Helper()
	text := mustRead(s, s.audit)
	for line := range strings.Lines(text) {
		var r request
		if err := json.Unmarshal([]byte(line), &r); err == nil && r.At.After(since) { // the last line may be incomplete
			list = append(list, r)
		}
	}
	return list
}
