//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const startupTaint = "kube-nftproxy.io/not-ready"

// taints returns the keys of the taints of a Node.
func (s *site) taints(name string) (keys []string, err error) {
	n, err := s.api.Client().CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, t := range n.Spec.Taints {
		keys = append(keys, t.Key)
	}
	return keys, nil
}

// TestStartupTaint applies deploy/startup-taint: the program removes one taint from its Node, after the first sync, and may change nothing else.
func TestStartupTaint(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil)
	s.serve(s.Pods[0])
	s.publishWeb(s.Pods[0])
	taint := func() {
		s.sh("kubectl taint node " + nodeName + " first=1:NoSchedule " + startupTaint + "=:NoSchedule last=:PreferNoSchedule --overwrite")
	}
	taint()
	s.sh("kubectl create -f - <<<'{apiVersion: v1, kind: Node, metadata: {name: other}, spec: {taints: [{key: " + startupTaint + ", effect: NoSchedule}]}}'")
	s.sh(strings.Replace(fmt.Sprintf(configured, s.api.Server()), "apply -k deploy/base", "apply -k deploy/startup-taint", 1))
	removed := func() error {
		keys, err := s.taints(nodeName)
		if diff := cmp.Diff([]string{"first", "last"}, keys); err == nil && diff != "" {
			err = fmt.Errorf("taints (-want +got):\n%s", diff)
		}
		return err
	}
	eventually(t, patience, removed)
	s.reachWeb("pod-0")
	taint() // as a Node that is registered again
	eventually(t, 2*patience, removed)

	token := strings.TrimSpace(s.sh("kubectl -n kube-system get pods -l k8s-app=kube-nftproxy -o name"))
	token = strings.TrimSpace(s.sh("kubectl -n kube-system create token kube-nftproxy --bound-object-kind Pod --bound-object-name " + strings.TrimPrefix(token, "pod/")))
	for patch, want := range map[string]string{
		nodeName + ` {"spec":{"unschedulable":true}}`:                        "only change the taints",
		nodeName + ` {"metadata":{"labels":{"a":"b"}}}`:                      "only change the taints",
		nodeName + ` {"metadata":{"annotations":{"a":"b"}}}`:                 "only change the taints",
		nodeName + ` {"spec":{"taints":[]}}`:                                 "only remove the taint",
		nodeName + ` {"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`: "only remove the taint",
		`other {"spec":{"taints":[]}}`:                                       "only change the Node on which",
	} {
		node, text, _ := strings.Cut(patch, " ")
		out, err := s.try("kubectl --kubeconfig=/dev/null --server=https://" + s.api.Server().String() + " --insecure-skip-tls-verify --token=" + token +
			" patch node " + node + " --type=merge -p '" + text + "'")
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s, want a refusal with %q", patch, err, out, want)
		}
	}

	s.sh("kubectl delete clusterrolebinding kube-nftproxy-startup-taint")
	s.sh("kubectl taint node " + nodeName + " " + startupTaint + "=:NoSchedule")
	_, d := s.pod("kube-nftproxy")
	eventually(t, 2*patience, func() error {
		if lines := d.lines("Cannot remove the taint", "apply deploy/startup-taint"); len(lines) == 0 {
			return fmt.Errorf("no error:\n%s", d.LogTail(5))
		}
		return nil
	})
}
