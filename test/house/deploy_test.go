package house

import (
	"go/ast"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// base is the folder of the objects that other folders build on.
const base = "deploy/base/"

// kustomization is the used part of kustomize's format.
type kustomization struct {
	APIVersion         string            `json:"apiVersion"`
	Kind               string            `json:"kind"`
	Namespace          string            `json:"namespace"`
	Resources          []string          `json:"resources"`
	ConfigMapGenerator []configMap       `json:"configMapGenerator"`
	Labels             []labels          `json:"labels"`
	Images             []kustomizedImage `json:"images"`
}

type labels struct {
	Pairs            map[string]string `json:"pairs"`
	IncludeTemplates bool              `json:"includeTemplates"`
}

type configMap struct {
	Name    string   `json:"name"`
	Files   []string `json:"files"`
	Options struct {
		DisableNameSuffixHash bool              `json:"disableNameSuffixHash"`
		Annotations           map[string]string `json:"annotations"`
		Labels                map[string]string `json:"labels"`
	} `json:"options"`
}

type kustomizedImage struct {
	Name    string `json:"name"`
	NewName string `json:"newName"`
	NewTag  string `json:"newTag"`
}

func mustKustomization(t *testing.T) (k kustomization) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(mustRead(t, base+"kustomization.yaml")), &k); err != nil {
		t.Fatalf("%skustomization.yaml: %v", base, err)
	}
	return k
}

// manifests decodes the objects of the base, and fails on unknown fields.
func manifests(t *testing.T) (out []runtime.Object) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, name := range mustKustomization(t).Resources {
		documents := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(mustRead(t, base+name))))
		buf := make([]byte, 1<<20)
		for {
			n, err := documents.Read(buf)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", base+name, err)
			}
			object, _, err := decoder.Decode(buf[:n], nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", base+name, err)
			}
			out = append(out, object)
		}
	}
	return out
}

// the returns the only object of a type.
func the[T runtime.Object](t *testing.T, objects []runtime.Object) (found T) {
	t.Helper()
	n := 0
	for _, o := range objects {
		if o, ok := o.(T); ok {
			found = o
			n++
		}
	}
	if n != 1 {
		t.Fatalf("deploy: %d objects of type %T, want 1", n, found)
	}
	return found
}

func TestEveryManifestIsDeployed(t *testing.T) {
	k := mustKustomization(t)
	want := slices.Concat(k.Resources, []string{"kustomization.yaml"})
	for _, m := range k.ConfigMapGenerator {
		want = append(want, m.Files...)
	}
	var got []string
	for _, name := range files(t) {
		if dir, file := path.Split(name); dir == base {
			got = append(got, file)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	lab.Same(t, want, got, "files of %skustomization.yaml and of the folder", base)
}

// nodeProxier are the resources that the ClusterRole system:node-proxier permits to list and watch; it also permits to write
// Events. The API server creates the role (k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go). An e2e
// test checks it.
var nodeProxier = []string{"endpointslices", "nodes", "servicecidrs", "services"}

// withHostPorts are the resources that deploy/host-ports permits in addition.
var withHostPorts = []string{"pods"}

// TestRoleHasTheWatchedResources compares the roles with the clients that pkg/watch uses.
func TestRoleHasTheWatchedResources(t *testing.T) {
	watched := map[string]bool{}
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || s.dir != "pkg/watch" {
				return true
			}
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "access" {
				client := call.Args[0]
				if namespaced, ok := client.(*ast.CallExpr); ok {
					client = namespaced.Fun
				}
				watched[strings.ToLower(client.(*ast.SelectorExpr).Sel.Name)] = true
			}
			return true
		})
	}
	permitted := slices.Sorted(slices.Values(slices.Concat(nodeProxier, withHostPorts)))
	lab.Same(t, permitted, slices.Sorted(maps.Keys(watched)), "permitted and watched")
	var role rbacv1.ClusterRole
	first, _, _ := strings.Cut(mustRead(t, "deploy/host-ports/clusterrole.yaml"), "\n---\n")
	lab.Must(t, yaml.Unmarshal([]byte(first), &role))
	lab.Same(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: withHostPorts, Verbs: []string{"list", "watch"}}},
		role.Rules, "permitted by deploy/host-ports")

	objects := manifests(t)
	account := the[*corev1.ServiceAccount](t, objects)
	binding := the[*rbacv1.ClusterRoleBinding](t, objects)
	want := rbacv1.ClusterRoleBinding{
		TypeMeta:   binding.TypeMeta,
		ObjectMeta: binding.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}},
	}
	lab.Same(t, &want, binding, "binding")
	if got := the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec.ServiceAccountName; got != account.Name {
		t.Errorf("service account of the pods is %q, want %q", got, account.Name)
	}
	for _, o := range objects {
		switch o.(type) {
		case *rbacv1.ClusterRole, *rbacv1.Role, *rbacv1.RoleBinding:
			t.Errorf("deploy has a %T: no permission but those of system:node-proxier is needed", o)
		}
	}
}

// TestDaemonSet checks for mistakes that would only be visible in a cluster.
func TestDaemonSet(t *testing.T) {
	objects := manifests(t)
	daemons := the[*appsv1.DaemonSet](t, objects)
	pod := daemons.Spec.Template
	for key, value := range daemons.Spec.Selector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("the selector %s=%s doesn't match the pods' labels", key, value)
		}
	}
	if !pod.Spec.HostNetwork || pod.Spec.PriorityClassName != "system-node-critical" {
		t.Errorf("hostNetwork %v, priorityClassName %q", pod.Spec.HostNetwork, pod.Spec.PriorityClassName)
	}
	lab.Same(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Spec.Tolerations, "tolerations")
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 1 {
		t.Fatalf("%d containers after %d, want one each", len(pod.Spec.Containers), len(pod.Spec.InitContainers))
	}
	for _, c := range []corev1.Container{pod.Spec.InitContainers[0], pod.Spec.Containers[0]} {
		checkSecurity(t, c)
		checkConfiguration(t, pod.Spec, c)
		checkFlags(t, c.Command[1:])
	}
	checkProbes(t, pod.Spec.Containers[0])
}

// checkSecurity compares a container's privileges with the minimum.
func checkSecurity(t *testing.T, c corev1.Container) {
	t.Helper()
	yes, no := true, false
	want := &corev1.SecurityContext{
		Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	lab.Same(t, want, c.SecurityContext, "security of container %s", c.Name)
}

// checkConfiguration looks for the ConfigMap's files at the paths in arguments and configuration. The whole folder must be
// mounted: the kubelet does not update a file that is mounted by itself.
func checkConfiguration(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	const folder = "/var/lib/kube-proxy"
	m := mustKustomization(t).ConfigMapGenerator[0]
	if m.Options.DisableNameSuffixHash {
		t.Errorf("ConfigMap %s keeps its name after a change: no rolling update applies the change", m.Name)
	}
	lab.Same(t, []string{"config.conf", "kubeconfig.conf"}, m.Files, "files of the ConfigMap")
	if !slices.Contains(c.Command, "--config="+folder+"/config.conf") ||
		!strings.Contains(mustRead(t, base+"config.conf"), "\n  kubeconfig: "+folder+"/kubeconfig.conf\n") {
		t.Errorf("container %s: no use of the ConfigMap's files", c.Name)
	}
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == m.Name })
	if i < 0 {
		t.Fatalf("no volume of ConfigMap %s", m.Name)
	}
	want := corev1.VolumeMount{Name: pod.Volumes[i].Name, MountPath: folder, ReadOnly: true}
	if !slices.ContainsFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool { return cmp.Equal(v, want) }) {
		t.Errorf("container %s: mounts %+v, want %+v among them", c.Name, c.VolumeMounts, want)
	}
}

// checkFlags looks up the arguments among the program's flags.
func checkFlags(t *testing.T, args []string) {
	t.Helper()
	table := flagTable(mustHelp(t))
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if !strings.Contains(table, "| `"+name+"` |") {
			t.Errorf("the program has no flag %s", name)
		}
	}
}

func checkProbes(t *testing.T, c corev1.Container) {
	t.Helper()
	for _, want := range []struct {
		name, path string
		probe      *corev1.Probe
	}{{"startup", "/livez", c.StartupProbe}, {"liveness", "/livez", c.LivenessProbe}, {"readiness", "/readyz", c.ReadinessProbe}} {
		if p := want.probe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != want.path || p.HTTPGet.Port.IntValue() != 10256 {
			t.Errorf("%s probe does not query %s on port 10256", want.name, want.path)
		}
	}
}
