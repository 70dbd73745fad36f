//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// kubeadmFlags returns the flags of a cluster with these prefixes of pods.
func (s *site) kubeadmFlags(podCIDR string) string {
	return fmt.Sprintf("--kubernetes-version v1.36.3 --apiserver-advertise-address %s --control-plane-endpoint %s --pod-network-cidr %s",
		s.Node.IPv4, s.api.Server(), podCIDR)
}

// TestKubeadmAddon runs the pod of kubeadm's DaemonSet with only the image replaced.
func TestKubeadmAddon(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil, allowPrivileged)
	s.serve(s.Pods[0])
	s.apply(balanced())
	s.applySlices("a", endpointsOf(s.Pods[0]))
	s.kubeadm(s.kubeadmFlags("10.244.0.0/16,fd00:10:244::/56"))
	theirs := s.daemonSet("kube-proxy")
	s.sh("kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=" + ourImage + ":v0.1.0")
	ours := s.daemonSet("kube-proxy")
	if diff := cmp.Diff(theirs.Spec, ours.Spec, cmpopts.IgnoreFields(corev1.Container{}, "Image")); diff != "" {
		t.Errorf("more than the image was changed (-kubeadm +ours):\n%s", diff)
	}

	_, d := s.pod("kube-proxy")
	s.reachWeb("pod-0")
	eventually(t, patience, s.startSaid)
	s.seenAs(s.Node, s.Node)

	// Now the cluster has one family: no IPv6 prefix identifies pods, and nothing is masqueraded for it.
	s.sh("kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's|,fd00:10:244::/56||' | kubectl apply -f -")
	select {
	case <-d.Ended():
	case <-time.After(patience):
		t.Fatal("the program continues with a changed configuration")
	}
	if d.Wait() == nil || len(d.lines("content of the proxy server's configuration file was updated")) == 0 {
		t.Errorf("it ended with %v, and says:\n%s", d.Wait(), d.LogTail(3))
	}
	s.seenAs(s.Node, s.Client)
	for _, r := range s.requests(time.Time{}) {
		if r.Response.Code == 403 {
			t.Errorf("refused: %+v", r)
		}
	}

	t.Run("hardened", func(t *testing.T) {
		s.sh(`sed -i 's|kube-nftproxy:dev|` + ourImage + `:v0.1.0|' deploy/kubeadm/hardened.yaml
kubectl -n kube-system patch daemonset kube-proxy --patch-file deploy/kubeadm/hardened.yaml`)
		s.sh("kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=20s")
		p, d := s.pod("kube-proxy")
		if len(p.Spec.InitContainers) != 1 {
			t.Fatalf("%d containers before it, want 1", len(p.Spec.InitContainers))
		}
		testPrivileges(t, d)
		reach(t, s.Client, s.clusterIPs("web")[0], "pod-0")
		base := s.daemonSetOfDeploy()
		if diff := cmp.Diff(base.Containers[0].SecurityContext, p.Spec.Containers[0].SecurityContext); diff != "" {
			t.Errorf("security context (-deploy +hardened):\n%s", diff)
		}
		if diff := cmp.Diff(base.Containers[0].LivenessProbe, p.Spec.Containers[0].LivenessProbe); diff != "" {
			t.Errorf("liveness probe (-deploy +hardened):\n%s", diff)
		}
		for _, v := range p.Spec.Volumes {
			if v.Name == "lib-modules" {
				t.Error("volume lib-modules is still there")
			}
		}
	})
}

func (s *site) daemonSet(name string) *appsv1.DaemonSet {
	s.Helper()
	d, err := s.api.Client().AppsV1().DaemonSets("kube-system").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// daemonSetOfDeploy returns the pod of deploy/base with the API server's defaults.
func (s *site) daemonSetOfDeploy() *corev1.PodSpec {
	s.Helper()
	var d appsv1.DaemonSet
	text := s.sh("kubectl apply -k deploy/base --dry-run=server -l k8s-app=kube-nftproxy -o json")
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
			if a := s.Client.Probe(s.Context(), model.TCP, addr, lab.Options{}); a.Source.Addr() != want {
				return fmt.Errorf("client -> %s: %s, want it seen as %s", addr, a, want)
			}
			return nil
		})
	}
}
