package house

import (
	"go/ast"
	"io"
	"maps"
	"path"
	"regexp"
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
)

// kustomization is the part of kustomize's format that we use.
type kustomization struct {
	APIVersion         string            `json:"apiVersion"`
	Kind               string            `json:"kind"`
	Namespace          string            `json:"namespace"`
	Resources          []string          `json:"resources"`
	ConfigMapGenerator []configMap       `json:"configMapGenerator"`
	Images             []kustomizedImage `json:"images"`
}

type configMap struct {
	Name string   `json:"name"`
	Envs []string `json:"envs"`
}

type kustomizedImage struct {
	Name    string `json:"name"`
	NewName string `json:"newName"`
	NewTag  string `json:"newTag"`
}

func mustKustomization(t *testing.T) (k kustomization) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(mustRead(t, "deploy/kustomization.yaml")), &k); err != nil {
		t.Fatalf("deploy/kustomization.yaml: %v", err)
	}
	return k
}

// manifests decodes the objects of deploy/, and fails on fields that their types don't have.
func manifests(t *testing.T) (out []runtime.Object) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, name := range mustKustomization(t).Resources {
		documents := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(mustRead(t, "deploy/"+name))))
		buf := make([]byte, 1<<20)
		for {
			n, err := documents.Read(buf)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("deploy/%s: %v", name, err)
			}
			object, _, err := decoder.Decode(buf[:n], nil, nil)
			if err != nil {
				t.Fatalf("deploy/%s: %v", name, err)
			}
			out = append(out, object)
		}
	}
	return out
}

// the returns the one object of a type.
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
	var got []string
	for _, name := range files(t) {
		if dir, file := path.Split(name); dir == "deploy/" && path.Ext(file) == ".yaml" {
			got = append(got, file)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources of deploy/kustomization.yaml and files (-want +got):\n%s", diff)
	}
}

// nodeProxier is what the ClusterRole system:node-proxier permits us, which the API server makes
// (k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go): to list and watch these, and to write
// Events. A test with a real API server proves it.
var nodeProxier = []string{"endpointslices", "nodes", "servicecidrs", "services"}

// TestRoleIsWhatIsWatched compares the role with the informers that pkg/watch makes.
func TestRoleIsWhatIsWatched(t *testing.T) {
	watched := map[string]bool{}
	constructor := regexp.MustCompile(`^\w+informers\.New(?:Filtered)?(\w+)Informer$`)
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if m := constructor.FindStringSubmatch(selector(n)); m != nil {
				watched[strings.ToLower(m[1])+"s"] = true
			}
			return true
		})
	}
	if diff := cmp.Diff(nodeProxier, slices.Sorted(maps.Keys(watched))); diff != "" {
		t.Errorf("permitted and watched (-want +got):\n%s", diff)
	}

	objects := manifests(t)
	account := the[*corev1.ServiceAccount](t, objects)
	binding := the[*rbacv1.ClusterRoleBinding](t, objects)
	want := rbacv1.ClusterRoleBinding{
		TypeMeta:   binding.TypeMeta,
		ObjectMeta: binding.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}},
	}
	if diff := cmp.Diff(&want, binding); diff != "" {
		t.Errorf("binding (-want +got):\n%s", diff)
	}
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

// TestDaemonSet checks what would fail only in a cluster.
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
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Spec.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(pod.Spec.Containers))
	}
	container := pod.Spec.Containers[0]
	wantCapabilities := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}
	if diff := cmp.Diff(wantCapabilities, container.SecurityContext.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	checkVariables(t, container)
	checkFlags(t, container.Args)
	if len(pod.Spec.InitContainers) != 1 {
		t.Fatalf("%d containers before it, want 1", len(pod.Spec.InitContainers))
	}
	checkFlags(t, pod.Spec.InitContainers[0].Args)
	checkProbes(t, container)
}

// checkVariables looks for the variables that arguments refer to in the file that the ConfigMap is made of.
func checkVariables(t *testing.T, c corev1.Container) {
	t.Helper()
	known := map[string]bool{}
	for _, e := range c.Env {
		known[e.Name] = true
	}
	for _, m := range mustKustomization(t).ConfigMapGenerator {
		if len(c.EnvFrom) != 1 || c.EnvFrom[0].ConfigMapRef.Name != m.Name {
			t.Errorf("the container doesn't take its environment from ConfigMap %s", m.Name)
		}
		for _, file := range m.Envs {
			for _, match := range regexp.MustCompile(`(?m)^(\w+)=`).FindAllStringSubmatch(mustRead(t, "deploy/"+file), -1) {
				known[match[1]] = true
			}
		}
	}
	for _, match := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(strings.Join(c.Args, " "), -1) {
		if !known[match[1]] {
			t.Errorf("no variable %s", match[1])
		}
	}
}

// checkFlags looks for the arguments among the program's flags.
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
	for name, probe := range map[string]*corev1.Probe{
		"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/livez" || probe.HTTPGet.Port.IntValue() != 10256 {
			t.Errorf("%s probe doesn't ask /livez on port 10256", name)
		}
	}
}
