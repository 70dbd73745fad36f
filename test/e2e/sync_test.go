//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestNothingBeforeSync runs a daemon that may read Services but not EndpointSlices. With an incomplete plan, it would reject all
// traffic. It must not touch the kernel before it has read both.
func TestNothingBeforeSync(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2})
	w.serve(w.Pods[0])
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	w.allow("half", "services", "nodes", "servicecidrs")

	d := w.startOn(w.Node, w.impersonate("half"))
	d.awaitLine("endpointslices", "is forbidden")
	never(t, 2*time.Second, func() error {
		if rules := nft(t, w.Node, "list", "ruleset"); rules != "" {
			return fmt.Errorf("programmed without EndpointSlices:\n%s", rules)
		}
		return nil
	})
	w.allow("slices", "endpointslices")
	w.bind("half", "slices")
	// The informer's pause between two attempts may have increased to half a minute.
	eventually(t, 2*patience, func() error {
		return reached(t.Context(), w.Pods[1], inet.TCP, w.clusterIPs("web")[0], "pod-0")
	})
}

// allow creates a ClusterRole that may read these resources, and a user of the same name with that role.
func (w *world) allow(name string, resources ...string) {
	w.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"", "discovery.k8s.io", "networking.k8s.io"}, Resources: resources,
			Verbs: []string{"list", "watch"},
		}},
	}
	if _, err := w.api.Client().RbacV1().ClusterRoles().Create(w.Context(), role, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.bind(name, name)
}

func (w *world) bind(user, role string) {
	w.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := w.api.Client().RbacV1().ClusterRoleBindings().Create(w.Context(), binding, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// impersonate writes a kubeconfig with which the administrator impersonates another user.
func (w *world) impersonate(user string) string {
	w.Helper()
	path := filepath.Join(w.dir, user+".kubeconfig")
	must(w, w.api.Kubeconfig(path, true))
	config, err := clientcmd.LoadFromFile(path)
	must(w, err)
	for _, auth := range config.AuthInfos {
		auth.Impersonate = user
	}
	must(w, clientcmd.WriteToFile(*config, path))
	return path
}

// TestRestartOfTheAPIServer stops the API server under the daemon: the rules stay, and later changes are programmed.
func TestRestartOfTheAPIServer(t *testing.T) {
	w := ownWorld(t, lab.Config{Pods: 3})
	w.serve(w.Pods[0], w.Pods[1])
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	d := w.start()
	ip := w.clusterIPs("web")[0]
	reach(t, w.Pods[2], ip, "pod-0")

	server := w.api.Pids()[1]
	must(t, syscall.Kill(server, syscall.SIGSTOP))
	resume := func() error { return syscall.Kill(server, syscall.SIGCONT) }
	t.Cleanup(func() { _ = resume() }) // a stopped server would not process a signal to exit
	never(t, 3*time.Second, func() error {
		return errors.Join(reached(t.Context(), w.Pods[2], inet.TCP, ip, "pod-0"), answer(d, "healthz", 200))
	})
	must(t, resume())
	w.apply(slice("web", "web-1", endpoint(w.Pods[1].IPv4)))
	reach(t, w.Pods[2], ip, "pod-1")

	for _, pid := range w.api.Pids() {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	d.Kill()
	again := w.start()
	eventually(t, patience, func() error { _, err := again.scrape(); return err })
	never(t, time.Second, func() error { return reached(t.Context(), w.Pods[2], inet.TCP, ip, "pod-1") })
	for _, pid := range w.api.Pids() {
		must(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	w.apply(slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	reach(t, w.Pods[2], ip, "pod-0")
	if panics := again.lines("panic"); len(panics) > 0 {
		t.Errorf("panics: %s", strings.Join(panics, ""))
	}
}
