//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// configured are an operator's required edits of deploy/.
const configured = `sed -i 's|ADDRESS:PORT|%s|' deploy/base/kubeconfig.conf
sed -i 's|^clusterCIDR: .*|clusterCIDR: 10.244.0.0/16,fd00:10:244::/56|' deploy/base/config.conf
kubectl apply -k deploy/base`

// TestDeploy applies deploy/ with the original kubectl to the original API server, and runs the resulting pod: its containers
// with their image, files, token and privileges.
func TestDeploy(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil)
	s.serve(s.Pods[0])
	s.publishWeb(s.Pods[0])
	if got := s.sysctl("nf_conntrack_tcp_timeout_established"); got == "86400" {
		t.Fatalf("the test can't tell who sets conntrack's timeouts: %s s already", got)
	}
	s.sh(fmt.Sprintf(configured, s.api.Server()))
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	p, d := s.pod("kube-nftproxy")
	s.reachWeb("pod-0")
	// A list and a watch of each of four resources, and the Event of the start. docs/benchmarks-details.md multiplies this by the nodes of a roll-out.
	if made := s.requests(time.Time{}); len(made) > 9 {
		t.Errorf("the start of a node has made %d requests to the API server: %+v", len(made), made)
	}

	t.Run("probes", func(t *testing.T) {
		c := p.Spec.Containers[0]
		for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			lab.Check(t, s.kubelet.Probe(t.Context(), p, probe), "%s", name)
		}
	})
	t.Run("privileges", func(t *testing.T) { testPrivileges(t, d) })
	t.Run("sysctls", func(t *testing.T) {
		for name, want := range map[string]string{"nf_conntrack_tcp_timeout_established": "86400", "nf_conntrack_tcp_timeout_close_wait": "3600"} {
			lab.Same(t, want, s.sysctl(name), "%s", name)
		}
	})
	t.Run("snapshot", func(t *testing.T) {
		path := filepath.Join(s.kubelet.Machine(), "var/lib/kube-nftproxy/objects")
		eventually(t, patience, func() error {
			_, err := os.Stat(path)
			return err
		})
	})
	t.Run("configuration", func(t *testing.T) { testConfigMap(t, s) })
	t.Run("wrong address of the API server", func(t *testing.T) { testWrongAddress(t, s) })
	t.Run("permissions", func(t *testing.T) { testNoPermissionToSpare(t, s) })
	t.Run("host ports", func(t *testing.T) { testHostPortsPermission(t, s) })
	t.Run("pod security", func(t *testing.T) { testPodSecurity(t, s, p) })
	t.Run("external IPs", func(t *testing.T) { testExternalIPs(t, s) })
	t.Run("folder of one's own", func(t *testing.T) { testOwnFolder(t, s) })
	t.Run("applied again", func(t *testing.T) {
		if out := s.sh("kubectl apply -k deploy/base"); strings.Count(out, "unchanged") != 4 {
			t.Errorf("want four objects unchanged:\n%s", out)
		}
		lab.Same(t, "", s.sh("kubectl diff -k deploy/base"), "kubectl diff")
	})
	t.Run("canary", func(t *testing.T) {
		testCanary(t, s, "kubectl apply -k deploy/canary", "kubectl delete -k deploy/canary")
	})
	t.Run("chart", func(t *testing.T) { testChart(t, s) })
}

// testCanary installs the canary beside the DaemonSet of all nodes, which does not change. A label moves the node from one to the other, and back.
func testCanary(t *testing.T, s *site, install, remove string) {
	const canary, label = "kube-nftproxy-canary", "kubectl label node " + nodeName + " service-proxy"
	all := s.daemonSet("kube-nftproxy")
	before, _ := s.pod("kube-nftproxy")
	s.sh(install)
	made := s.daemonSet(canary)
	for d, other := range map[*appsv1.DaemonSet]*appsv1.DaemonSet{all: made, made: all} {
		if selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err != nil || selector.Matches(labels.Set(other.Spec.Template.Labels)) {
			t.Errorf("%s selects pods of %s: %s, %v", d.Name, other.Name, selector, err)
		}
	}
	s.sh(label + "=kube-nftproxy")
	eventually(t, patience, func() error { return s.servedBy(canary) })
	s.reachWeb("pod-0")
	if now := s.daemonSet("kube-nftproxy"); now.Generation != all.Generation {
		t.Errorf("the canary has changed the DaemonSet of all nodes:\n%+v", now.Spec)
	}
	s.sh(label + "-")
	eventually(t, patience, func() error { return s.servedBy("kube-nftproxy") })
	s.sh(remove)
	s.reachWeb("pod-0")
	if after, _ := s.pod("kube-nftproxy"); configMapOf(after) != configMapOf(before) {
		t.Errorf("the pod has ConfigMap %s after the canary, %s before", configMapOf(after), configMapOf(before))
	}
}

// servedBy returns nil if the only pod of the node belongs to a DaemonSet and is ready.
func (s *site) servedBy(name string) error {
	s.Helper()
	p, _ := s.pod("kube-nftproxy")
	if owner := metav1.GetControllerOf(p); owner == nil || owner.Name != name {
		return fmt.Errorf("pod %s belongs to %+v, want DaemonSet %s", p.Name, owner, name)
	}
	return nil
}

// sysctl reads a conntrack sysctl in the node's network namespace.
func (s *site) sysctl(name string) (value string) {
	s.Helper()
	must(s, s.Node.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		value = strings.TrimSpace(string(text))
		return err
	}))
	return value
}

// testPrivileges checks the kernel's view of the program's privileges, and tries forbidden writes.
func testPrivileges(t *testing.T, d *daemon) {
	text := mustRead(t, fmt.Sprintf("/proc/%d/status", d.Pid()))
	const netAdmin = "0000000000001000"
	want := map[string]string{"CapInh": "0000000000000000", "CapPrm": netAdmin, "CapEff": netAdmin, "CapBnd": netAdmin, "NoNewPrivs": "1"}
	got := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(line, ":"); want[name] != "" {
			got[name] = strings.TrimSpace(value)
		}
	}
	lab.Same(t, want, got, "privileges of the program")
	mounts := mustRead(t, fmt.Sprintf("/proc/%d/mounts", d.Pid()))
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if slices.Contains([]string{"/", "/proc/sys", "/sys", "/var/lib/kube-proxy"}, f[1]) && !strings.HasPrefix(f[3], "ro,") {
			t.Errorf("can be written to: %s", line)
		}
	}
	mib := d.memory("VmRSS")
	t.Logf("memory with one Service: %.0f MiB", mib)
	if mib > 64 {
		t.Errorf("%.0f MiB of memory with one Service: more than the pod requests", mib)
	}
}

// testConfigMap changes the configuration: the DaemonSet's rolling update applies it and undoes it, while connections continue to be
// served.
func testConfigMap(t *testing.T, s *site) {
	before, _ := s.pod("kube-nftproxy")
	addr := s.Node.Addrs()[0]
	s.sh(`sed -i 's|^# nodePortAddresses: .*|nodePortAddresses: [198.51.100.0/24]|' deploy/base/config.conf
kubectl apply -k deploy/base`)
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	if after, _ := s.pod("kube-nftproxy"); after.UID == before.UID {
		t.Error("the pod continues with a changed configuration")
	}
	reach(t, s.Client, s.clusterIPs("web")[0], "pod-0")
	nodePort := s.webAddrs()[6]
	if nodePort.Addr() != addr {
		t.Fatalf("%s isn't the node's port", nodePort)
	}
	reach(t, s.Client, nodePort)                                        // no server any more
	s.sh("kubectl -n kube-system rollout undo daemonset/kube-nftproxy") // the ConfigMap of the earlier pods still exists
	reach(t, s.Client, nodePort, "pod-0")
	s.sh(`sed -i 's|^nodePortAddresses: .*|nodePortAddresses: [primary]|' deploy/base/config.conf
kubectl apply -k deploy/base`)
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	reach(t, s.Client, nodePort, "pod-0")
}

// testWrongAddress rolls out a kubeconfig with an address at which no API server listens. The new pod lives but is not ready, so the rolling update does
// not continue. Services stay reachable. /readyz and status have the same reason.
func testWrongAddress(t *testing.T, s *site) {
	before, _ := s.pod("kube-nftproxy")
	const file = "deploy/base/kubeconfig.conf"
	s.sh(`cp ` + file + ` "$HOME/right.conf"
sed -i 's|server: .*|server: https://127.0.0.1:1|' ` + file + `
kubectl apply -k deploy/base`)
	p := s.awaitUnready(t, "kube-nftproxy", before)
	if out, _ := s.try("kubectl -n kube-system exec " + p.Name + " -- kube-nftproxy status -o json"); !strings.Contains(out, `"ready": false`) ||
		!strings.Contains(out, `"reason": "APIServerUnreachable"`) {
		t.Errorf("status differs from /readyz:\n%s", out)
	}
	reach(t, s.Client, s.clusterIPs("web")[0], "pod-0")
	s.sh(`cp "$HOME/right.conf" ` + file + `
kubectl apply -k deploy/base
kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s`)
}

// awaitUnready waits until a pod has replaced another one of a DaemonSet, and lives, but is not ready because no API server is at 127.0.0.1:1.
func (s *site) awaitUnready(t *testing.T, app string, before *corev1.Pod) (p *corev1.Pod) {
	t.Helper()
	const reason = "APIServerUnreachable: API server https://127.0.0.1:1: the API server does not answer: "
	eventually(t, patience, func() error {
		list, err := s.api.Client().CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "k8s-app=" + app})
		if err != nil || len(list.Items) != 1 || list.Items[0].UID == before.UID {
			return fmt.Errorf("no new pod: %w", err)
		}
		p = &list.Items[0]
		c := p.Spec.Containers[0]
		if c.LivenessProbe != nil {
			if err := s.kubelet.Probe(t.Context(), p, c.LivenessProbe); err != nil {
				return fmt.Errorf("liveness: %w", err)
			}
		}
		if err = s.kubelet.Probe(t.Context(), p, c.ReadinessProbe); err == nil {
			t.Fatal("the new pod is ready, although it does not reach the API server")
		}
		if !strings.Contains(err.Error(), "status 503: not ready\n"+reason) {
			return fmt.Errorf("readiness: %w", err)
		}
		return nil
	})
	if status := s.daemonSet(app).Status; status.NumberUnavailable != 1 {
		t.Errorf("the roll-out does not count the pod as unavailable: %+v", status)
	}
	return p
}

// needed are the program's requests to the API server.
var needed = map[string][]string{
	"endpointslices": {"list", "watch"}, "events": {"create", "patch"}, "nodes": {"list", "watch"}, "servicecidrs": {"list", "watch"}, "services": {"list", "watch"},
}

// testNoPermissionToSpare compares the requests to the API server with the permissions of system:node-proxier. Then it removes
// one resource after the other from the role: the program's requests are rejected each time.
func testNoPermissionToSpare(t *testing.T, s *site) {
	eventually(t, patience, func() error { return s.startSaid() })
	asked := map[string]map[string]bool{}
	for _, r := range s.requests(time.Time{}) {
		if r.Response.Code == 403 {
			t.Errorf("refused: %+v", r)
		}
		if asked[r.Object.Resource] == nil {
			asked[r.Object.Resource] = map[string]bool{}
		}
		asked[r.Object.Resource][r.Verb] = true
	}
	lab.Same(t, slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(asked)), "resources asked for")
	for resource, verbs := range asked {
		for verb := range verbs {
			if !slices.Contains(needed[resource], verb) {
				t.Errorf("asked to %s %s", verb, resource)
			}
		}
	}
	p, d := s.pod("kube-nftproxy")
	if len(d.lines("forbidden")) > 0 {
		t.Errorf("refused, by the log: %q", d.lines("forbidden"))
	}
	roles := s.api.Client().RbacV1().ClusterRoles()
	whole, err := roles.Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	must(t, err)
	for _, resource := range slices.Sorted(maps.Keys(needed)) {
		t.Run("without "+resource, func(t *testing.T) {
			less := whole.DeepCopy()
			less.ResourceVersion = ""
			for i, rule := range less.Rules {
				less.Rules[i].Resources = slices.DeleteFunc(rule.Resources, func(r string) bool { return r == resource })
			}
			less.Rules = slices.DeleteFunc(less.Rules, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 })
			lab.Must(t, lab.Err(roles.Update(t.Context(), less, metav1.UpdateOptions{})))
			s.awaitPermission(t, resource, false)
			since := time.Now()
			eventually(t, patience, func() error { // without a permission, the program may not be ready
				running := s.kubelet.Program(p, "kube-nftproxy")
				if running == nil || running.Exited() {
					return errors.New("the program does not run")
				}
				running.Kill() // the kubelet starts another one
				return nil
			})
			eventually(t, patience, func() error {
				for _, r := range s.requests(since) {
					if r.Response.Code == 403 && r.Object.Resource == resource {
						return nil
					}
				}
				return errors.New("the program isn't refused")
			})
		})
	}
	whole.ResourceVersion = ""
	lab.Must(t, lab.Err(roles.Update(t.Context(), whole, metav1.UpdateOptions{})))
	s.awaitPermission(t, "events", true)
}

// testHostPortsPermission applies deploy/host-ports over deploy/base: with its role, the program reads the pods of its
// node only, and serves a host port. Without the role, it serves Services, and status has the finding APIForbidden.
func testHostPortsPermission(t *testing.T, s *site) {
	pods := s.api.Client().CoreV1().Pods(metav1.NamespaceDefault)
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "ingress"},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{
			Name: "proxy", Image: "none", Ports: []corev1.ContainerPort{{ContainerPort: backendPort, HostPort: 80}},
		}}},
	}, metav1.CreateOptions{})
	must(t, err)

	since := time.Now()
	s.sh("kubectl apply -k deploy/host-ports; kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	p, _ := s.pod("kube-nftproxy")
	eventually(t, patience, func() error { // the kubelet, which does not run the pod, also writes its status
		addr := s.Pods[0].IPv4.String()
		status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}]}}`, addr)
		var none metav1.PatchOptions
		_, err := pods.Patch(t.Context(), "ingress", types.MergePatchType, []byte(status), none, "status")
		return errors.Join(err, reached(t.Context(), s.Client, inet.TCP, netip.AddrPortFrom(s.Node.IPv4, 80), "pod-0"))
	})
	verbs := map[string]bool{}
	for _, r := range s.requests(since) {
		if r.Object.Resource != "pods" {
			continue
		}
		verbs[r.Verb] = true
		if r.Response.Code == 403 || !strings.Contains(r.URI, "fieldSelector=spec.nodeName%3D"+nodeName) {
			t.Errorf("refused, or a request for pods of other nodes: %+v", r)
		}
	}
	lab.Same(t, map[string]bool{"list": true, "watch": true}, verbs, "requests for pods")

	s.sh("kubectl delete clusterrole kube-nftproxy-host-ports")
	s.kubelet.Program(p, "kube-nftproxy").Kill() // the kubelet starts another one
	eventually(t, patience, func() error {
		out, err := s.try("kubectl -n kube-system exec daemonset/kube-nftproxy -- kube-nftproxy status")
		if !strings.Contains(out, "cannot read pods") {
			return fmt.Errorf("no finding about pods: %w: %s", err, out)
		}
		return nil
	})
	s.reachWeb("pod-0")

	s.sh("kubectl delete pod ingress --force --grace-period=0; kubectl delete clusterrolebinding kube-nftproxy-host-ports")
	s.sh("kubectl apply -k deploy/base")
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	s.pod("kube-nftproxy")
}

// startSaid returns nil if the Event of a start exists.
func (s *site) startSaid() error {
	list, err := s.api.Client().EventsV1().Events("default").List(s.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, e := range list.Items {
		if e.Reason == "Starting" && e.Regarding.Kind == "Node" && e.Regarding.Name == nodeName {
			return nil
		}
	}
	return fmt.Errorf("no Event Starting about the Node among %d", len(list.Items))
}

// awaitPermission waits until the API server's authorizer has processed a change of a role.
func (s *site) awaitPermission(t *testing.T, resource string, want bool) {
	t.Helper()
	groups := map[string]string{"endpointslices": "discovery.k8s.io", "events": "events.k8s.io", "servicecidrs": "networking.k8s.io"}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:kube-system:kube-nftproxy",
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: needed[resource][0], Group: groups[resource], Resource: resource},
	}}
	eventually(t, patience, func() error {
		answer, err := s.api.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && answer.Status.Allowed != want {
			err = fmt.Errorf("%s allowed: %t", resource, answer.Status.Allowed)
		}
		return err
	})
}

// testPodSecurity shows the Pod Security level that the pod needs in a namespace, and that no other property of the pod violates
// it.
func testPodSecurity(t *testing.T, s *site, p *corev1.Pod) {
	for _, level := range []string{"baseline", "privileged"} {
		name := "security-" + level
		s.apply(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level},
		}})
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: p.Spec.ServiceAccountName}}
		if _, err := s.api.Client().CoreV1().ServiceAccounts(name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: *p.Spec.DeepCopy()}
		object.Spec.PriorityClassName, object.Spec.Priority = "", nil // only kube-system may have node-critical pods
		err := s.tryPod(t.Context(), name, object)
		if level == "privileged" {
			lab.Check(t, err, "level %s", level)
			continue
		}
		if err == nil {
			t.Errorf("level %s admits the pod; then docs/migrating.md asks for too much", level)
			continue
		}
		want := []string{"host namespaces (hostNetwork=true)", `must not include "NET_ADMIN"`, "hostPath volumes", "probe"}
		for _, reason := range want {
			if !strings.Contains(err.Error(), reason) {
				t.Errorf("level %s: no %q in %v", level, reason, err)
			}
		}
		if strings.Contains(err.Error(), "privileged (") {
			t.Errorf("level %s: a container is privileged: %v", level, err)
		}
	}
}

// testExternalIPs applies the policy of docs/security-review.md: a namespace gets only the addresses in its annotation.
func testExternalIPs(t *testing.T, s *site) {
	blocks := mustReadPage(t, "docs/security-review.md", "yaml")["externalIPs"]
	if len(blocks) != 1 {
		t.Fatalf("%d blocks, want one", len(blocks))
	}
	serve := func(namespace, name, ips string) (string, error) {
		return s.try("kubectl apply -f - <<<'{apiVersion: v1, kind: Service, metadata: {namespace: " + namespace + ", name: " + name +
			"}, spec: {ports: [{port: 80}], externalIPs: [" + ips + "]}}'")
	}
	refused := func(namespace, name, ips string) error {
		out, err := serve(namespace, name, ips)
		if err == nil || !strings.Contains(out, "externalIPs: namespace "+namespace+" may use only [") {
			return fmt.Errorf("%s/%s with %s: %v, want a refusal by the policy: %s", namespace, name, ips, err, out)
		}
		return nil
	}
	admitted := func(namespace, name, ips string) {
		t.Helper()
		if out, err := serve(namespace, name, ips); err != nil {
			t.Errorf("%s/%s with %s: %v, want no refusal: %s", namespace, name, ips, err, out)
		}
	}
	s.sh("kubectl create namespace tenant-a; kubectl create namespace tenant-b")
	admitted("tenant-b", "earlier", "203.0.113.9")
	s.sh("kubectl annotate namespace tenant-a example.com/external-ips=203.0.113.7,2001:db8::7; kubectl apply -f - <<'END'\n" + blocks[0] + "END")
	eventually(t, patience, func() error { // the API server applies the policy after a moment
		return refused("tenant-b", "probe-"+fmt.Sprint(time.Now().UnixNano()), "203.0.113.7")
	})
	admitted("tenant-a", "assigned", `203.0.113.7, "2001:db8::7"`)
	admitted("tenant-a", "none", "")
	admitted("tenant-b", "earlier", "203.0.113.9") // unchanged
	s.sh(`kubectl -n tenant-b patch service earlier -p '{"metadata":{"labels":{"a":"b"}}}'`)
	for _, err := range []error{
		refused("tenant-a", "other", "203.0.113.9"), refused("tenant-a", "assigned", "203.0.113.7, 203.0.113.8"), refused("tenant-b", "earlier", "203.0.113.7"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// repositoryURL is the address of the repository on the page. The tests use a repository with the same content on the machine.
const repositoryURL = "https://github.com/kube-nftproxy/kube-nftproxy"

// publish makes a repository of a copy of deploy/ below a folder.
const publish = `git init --quiet repository && cp -r deploy repository && cd repository && git add deploy &&
git -c user.name=a -c user.email=a@example.com commit --quiet --message=a && git tag v0.1.0
`

// testOwnFolder builds on the base at its URL, as in deploy/README.md.
func testOwnFolder(t *testing.T, s *site) {
	blocks := mustReadPage(t, "deploy/README.md", "yaml")["Deploying kube-nftproxy"]
	if len(blocks) != 1 {
		t.Fatalf("%d blocks, want one", len(blocks))
	}
	original := filepath.Join(s.checkout, "original")
	must(t, os.CopyFS(filepath.Join(original, "deploy"), os.DirFS("../../deploy")))
	s.sh("cd original\n" + publish)
	s.sh(`mkdir own && cp deploy/base/*.conf own && cat > own/kustomization.yaml <<'END'
` + strings.ReplaceAll(blocks[0], repositoryURL, "file://"+original+"/repository") + `END
sed -i 's|^clusterCIDR: .*|clusterCIDR: 10.99.0.0/16|' own/config.conf`)
	out := s.sh("kubectl apply -k own --dry-run=server -o yaml")
	lab.Contains(t, out, "output", "clusterCIDR: 10.99.0.0/16", "image: "+ourImage+":v0.1.0")
}

// TestBaseRefusesMissingValues: with the files of deploy/base as they are, neither container starts.
func TestBaseRefusesMissingValues(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	refused := func(want string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := l.Node.Command(ctx, program, args...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, want %s:\n%s", args, err, want, out)
		}
	}
	refused(`Invalid value: \"PREFIX-OF-YOUR-PODS\": must be a valid CIDR block`, "--config=../../deploy/base/config.conf", "--init-only")
	text := mustRead(t, "../../deploy/base/kubeconfig.conf")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig.conf") // the pod has these files
	outside := regexp.MustCompile(`(?m)^ *(certificate-authority|tokenFile): .*\n`).ReplaceAllString(text, "")
	must(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(outside, "user:\n", "user: {}\n")), 0o600))
	refused(`\"https://ADDRESS:PORT\"`, "--kubeconfig="+kubeconfig, "--hostname-override="+nodeName)
}

// tryPod checks whether the API server would accept a pod.
func (s *site) tryPod(ctx context.Context, namespace string, p *corev1.Pod) error {
	_, err := s.api.Client().CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
