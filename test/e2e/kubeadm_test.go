//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// kubeadmFlags returns the flags of a cluster with these prefixes of pods.
func (s *site) kubeadmFlags(podCIDR string) string {
	return fmt.Sprintf("--kubernetes-version v1.37.2 --apiserver-advertise-address %s --control-plane-endpoint %s --pod-network-cidr %s",
		s.Node.IPv4, s.api.Server(), podCIDR)
}

// swapImage is the command of the page that replaces the image in kubeadm's DaemonSet, without the wait that follows.
func swapImage(t *testing.T) string {
	t.Helper()
	command, _, _ := strings.Cut(mustReadPage(t, migrating, "sh")["kubeadm: swap the image"][0], "kubectl -n kube-system rollout")
	return command
}

// TestKubeadmAddon runs the pod of kubeadm's DaemonSet with only the image replaced, and a probe that lets only a working program count as ready.
func TestKubeadmAddon(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil, allowPrivileged)
	s.serve(s.Pods[0])
	s.publishWeb(s.Pods[0])
	s.kubeadm(s.kubeadmFlags("10.244.0.0/16,fd00:10:244::/56"))
	theirs := s.daemonSet("kube-proxy")
	s.sh(swapImage(t))
	ours := s.daemonSet("kube-proxy")
	if diff := cmp.Diff(theirs.Spec, ours.Spec, cmpopts.IgnoreFields(corev1.Container{}, "Image", "ReadinessProbe")); diff != "" {
		t.Errorf("more than the image and the probe was changed (-kubeadm +ours):\n%s", diff)
	}

	_, d := s.pod("kube-proxy")
	s.reachWeb("pod-0")
	eventually(t, patience, s.startSaid)
	s.seenAs(s.Node, s.Node)

	// Now the cluster has one family: no IPv6 prefix identifies pods, and nothing is masqueraded for it.
	s.sh("kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's|,fd00:10:244::/56||' | kubectl apply -f -")
	s.awaitOutdated(d)
	s.seenAs(s.Node, s.Node)
	s.restart(t)
	s.sh("kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=60s")
	s.seenAs(s.Node, s.Client)
	for _, r := range s.requests(time.Time{}) {
		if r.Response.Code == 403 {
			t.Errorf("refused: %+v", r)
		}
	}

	t.Run("wrong address of the API server", func(t *testing.T) {
		before, _ := s.pod("kube-proxy")
		address := s.api.Server().String()
		for _, to := range []string{"127.0.0.1:1", address} {
			s.sh("kubectl -n kube-system get configmap kube-proxy -o yaml | sed -E 's|server: .*|server: https://" + to + "|' | kubectl apply -f -")
			s.restart(t)
			if to != address {
				s.awaitUnready(t, "kube-proxy", before)
			}
		}
		s.sh("kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=60s")
		s.reachWeb("pod-0")
	})

	t.Run("hardened", func(t *testing.T) {
		s.sh(`sed -i 's|IMAGE$|` + ourImage + `:v0.1.0|' deploy/kubeadm/hardened.yaml
kubectl -n kube-system patch daemonset kube-proxy --patch-file deploy/kubeadm/hardened.yaml`)
		s.sh("kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=60s")
		p, d := s.pod("kube-proxy")
		if len(p.Spec.InitContainers) != 1 {
			t.Fatalf("%d containers before it, want 1", len(p.Spec.InitContainers))
		}
		testPrivileges(t, d)
		reach(t, s.Client, s.clusterIPs("web")[0], "pod-0")
		base := s.daemonSetOfDeploy()
		lab.Same(t, base.Containers[0].SecurityContext, p.Spec.Containers[0].SecurityContext, "security context (-deploy +hardened)")
		lab.Same(t, base.Containers[0].LivenessProbe, p.Spec.Containers[0].LivenessProbe, "liveness probe (-deploy +hardened)")
		lab.Same(t, base.Containers[0].ReadinessProbe, p.Spec.Containers[0].ReadinessProbe, "readiness probe (-deploy +hardened)")
		for _, v := range p.Spec.Volumes {
			if v.Name == "lib-modules" {
				t.Error("volume lib-modules is still there")
			}
		}
	})
}

// restart restarts the pods of kube-proxy. kubectl refuses a second restart within the same second.
func (s *site) restart(t *testing.T) {
	t.Helper()
	eventually(t, patience, func() error {
		out, err := s.try("kubectl -n kube-system rollout restart daemonset/kube-proxy")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// controlPlane is what kubeadm reads of a cluster that it upgrades: configurations, a Node and the Pod of an API server.
const controlPlane = `apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: ClusterConfiguration
    kubernetesVersion: v1.36.3
    controlPlaneEndpoint: %[1]s
    networking: {podSubnet: "10.244.0.0/16,fd00:10:244::/56"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubelet-config, namespace: kube-system}
data:
  kubelet: |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
---
apiVersion: v1
kind: Node
metadata: {name: control-plane-1}
---
apiVersion: v1
kind: Pod
metadata:
  name: kube-apiserver-control-plane-1
  namespace: kube-system
  labels: {component: kube-apiserver, tier: control-plane}
  annotations: {kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: "%[1]s", kubernetes.io/config.mirror: "1"}
spec:
  nodeName: control-plane-1
  hostNetwork: true
  containers: [{name: kube-apiserver, image: "registry.k8s.io/kube-apiserver:v1.37.2"}]
`

// upgradeConfiguration upgrades to the version of the tests' kubeadm, with or without patches.
const upgradeConfiguration = `apiVersion: kubeadm.k8s.io/v1beta4
kind: UpgradeConfiguration
apply: {kubernetesVersion: v1.37.2%s}
`

// TestKubeadmUpgradeKeepsTheImage upgrades the objects of kubeadm v1.36 with kubeadm v1.37, whose patches keep the image.
func TestKubeadmUpgradeKeepsTheImage(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil, allowPrivileged)
	s.serve(s.Pods[0])
	s.publishWeb(s.Pods[0])
	older := mustRead(t, "testdata/kubeadm-v1.36.3.yaml")
	server := s.api.Server().String()
	s.write("older.yaml", strings.ReplaceAll(older, "192.0.2.10:6443", server)+"---\n"+fmt.Sprintf(controlPlane, server))
	s.sh("kubectl apply -f older.yaml")
	s.sh(swapImage(t))
	_, d := s.pod("kube-proxy")
	s.reachWeb("pod-0")

	blocks := mustReadPage(t, migrating, "yaml")["kubeadm: upgrades of the cluster"]
	if len(blocks) != 1 {
		t.Fatalf("%d patches on the page, want 1", len(blocks))
	}
	const file = "patches/kubeproxydaemonset+strategic.yaml"
	s.write(file, blocks[0])
	s.upgrade(fmt.Sprintf(", patches: {directory: %s/patches}", s.checkout))
	if mode := s.sh("kubectl -n kube-system get configmap kube-proxy -o yaml | grep mode:"); !strings.Contains(mode, "mode: iptables") {
		t.Errorf("kubeadm v1.37 writes %q, want mode iptables", mode)
	}
	s.awaitOutdated(d) // the mode is written into the file, although it means the same
	s.awaitImage(ourImage + ":v0.1.0")
	s.reachWeb("pod-0")

	hardened := mustRead(t, "../../deploy/kubeadm/hardened.yaml")
	s.write(file, strings.ReplaceAll(hardened, "IMAGE", ourImage+":v0.1.0"))
	s.upgrade(fmt.Sprintf(", patches: {directory: %s/patches}", s.checkout))
	eventually(t, patience, func() error { // the image is the same, and the old pod may still be there
		var p *corev1.Pod
		if p, d = s.pod("kube-proxy"); len(p.Spec.InitContainers) != 1 {
			return fmt.Errorf("%d init containers, want 1", len(p.Spec.InitContainers))
		}
		return nil
	})
	testPrivileges(t, d)
	s.reachWeb("pod-0")

	// Without patches, the image is kube-proxy's again.
	s.upgrade("")
	if c := s.daemonSet("kube-proxy").Spec.Template.Spec.Containers[0]; c.Image != kubeProxyImage+":v1.37.2" || c.ReadinessProbe != nil {
		t.Errorf("without patches the image is %s, with the readiness probe %v", c.Image, c.ReadinessProbe)
	}
}

// awaitOutdated waits until the program has noticed that its configuration file has changed, and checks that it continues.
func (s *site) awaitOutdated(d *daemon) {
	s.Helper()
	d.awaitLine("a restart of the program applies it")
	if d.Exited() {
		s.Errorf("the program has exited: %s", d.LogTail(3))
	}
}

// upgrade has kubeadm upgrade kube-proxy as on a control-plane node.
func (s *site) upgrade(patches string) {
	s.Helper()
	s.write("upgrade.yaml", fmt.Sprintf(upgradeConfiguration, patches))
	s.Log(s.sh(`unshare --uts bash -c 'hostname control-plane-1; kubeadm upgrade apply phase addon kube-proxy --config upgrade.yaml --kubeconfig "$KUBECONFIG"'`))
}

// write makes a file of the checkout, and the folder above it.
func (s *site) write(file, text string) {
	s.Helper()
	path := filepath.Join(s.checkout, file)
	must(s, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
}

// awaitImage waits until the pod of kubeadm's DaemonSet is ready with an image.
func (s *site) awaitImage(want string) {
	s.Helper()
	p, _ := s.pod("kube-proxy")
	set := s.daemonSet("kube-proxy").Spec.Template.Spec.Containers[0].Image
	if image := p.Spec.Containers[0].Image; image != want || set != want {
		s.Errorf("the pod has image %s, and the DaemonSet %s, want %s", image, set, want)
	}
}

func (s *site) daemonSet(name string) *appsv1.DaemonSet {
	s.Helper()
	d, err := s.api.Client().AppsV1().DaemonSets("kube-system").Get(s.Context(), name, metav1.GetOptions{})
	must(s, err)
	return d
}

// daemonSetOfDeploy returns the pod of deploy/base with the API server's defaults.
func (s *site) daemonSetOfDeploy() *corev1.PodSpec {
	s.Helper()
	var d appsv1.DaemonSet
	text := s.sh("kubectl apply -k deploy/base --dry-run=server -o json | jq '.items[] | select(.kind == \"DaemonSet\")'")
	if err := json.Unmarshal([]byte(text), &d); err != nil || d.Kind != "DaemonSet" {
		s.Fatalf("%v, kind %q:\n%s", err, d.Kind, text)
	}
	return &d.Spec.Template.Spec
}

// seenAs waits until servers see the client under the addresses of these hosts, at each family's cluster IP.
func (s *site) seenAs(v4, v6 *lab.Host) {
	s.Helper()
	for _, addr := range s.clusterIPs("web") {
		want := v4.IPv4
		if addr.Addr().Is6() {
			want = v6.IPv6
		}
		eventually(s, patience, func() error {
			if a := s.Client.Probe(s.Context(), inet.TCP, addr, lab.Options{}); a.Source.Addr() != want {
				return fmt.Errorf("client -> %s: %s, want it seen as %s", addr, a, want)
			}
			return nil
		})
	}
}
