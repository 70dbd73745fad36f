//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestFlowControl applies deploy/flow-control: lists by service proxies get its FlowSchema and its level, and all
// other lists keep those of Kubernetes.
func TestFlowControl(t *testing.T) {
	s := newSite(t, lab.Config{}, nil, "--enable-priority-and-fairness=true")
	const account, ours = "system:serviceaccount:", "kube-nftproxy kube-nftproxy"
	users := []struct{ name, before, after string }{
		{account + "kube-system:kube-nftproxy", "kube-system-service-accounts workload-high", ours},
		{account + "kube-system:kube-nftproxy-canary", "kube-system-service-accounts workload-high", ours},
		{account + "kube-system:kube-proxy", "kube-system-service-accounts workload-high", ours},
		{"system:kube-proxy", "global-default global-default", ours},
		{account + "kube-system:coredns", "kube-system-service-accounts workload-high",
			"kube-system-service-accounts workload-high"},
		{account + "default:kube-nftproxy", "service-accounts workload-low", "service-accounts workload-low"},
		{"another", "global-default global-default", "global-default global-default"},
	}
	for _, u := range users {
		eventually(t, patience, func() error { return s.hasFlow(u.name, u.before) })
	}
	s.sh("kubectl apply -k deploy/flow-control")
	for _, u := range users {
		eventually(t, patience, func() error { return s.hasFlow(u.name, u.after) })
	}
	s.sh("kubectl delete -k deploy/flow-control")
	for _, u := range users {
		eventually(t, patience, func() error { return s.hasFlow(u.name, u.before) })
	}
}

// hasFlow lists Services as a user, permitted or not, and compares the names of the FlowSchema and the level in the
// headers of the response.
func (s *site) hasFlow(user, want string) error {
	config := rest.CopyConfig(s.api.Admin())
	config.Impersonate.UserName = user
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, config.Host+"/api/v1/services", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	names, err := s.flowNames()
	if err != nil {
		return err
	}
	got := names[response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")] + " " +
		names[response.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")]
	if got != want {
		return fmt.Errorf("%s: FlowSchema and level %q, want %q", user, got, want)
	}
	return nil
}

// flowNames returns the names of all FlowSchemas and levels by UID.
func (s *site) flowNames() (map[string]string, error) {
	names, client := map[string]string{}, s.api.Client().FlowcontrolV1()
	schemas, err := client.FlowSchemas().List(s.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range schemas.Items {
		names[string(o.UID)] = o.Name
	}
	levels, err := client.PriorityLevelConfigurations().List(s.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range levels.Items {
		names[string(o.UID)] = o.Name
	}
	return names, nil
}
