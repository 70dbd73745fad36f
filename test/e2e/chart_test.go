//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// helms are the releases of Helm that install the chart.
var helms = []string{"helm-v3", "helm-v4"}

// packager is an operator with a copy of deploy/, without a cluster.
type packager struct {
	*testing.T
	dir, bin string
}

func newPackager(t *testing.T) *packager {
	t.Helper()
	t.Parallel()
	p := &packager{T: t, dir: t.TempDir()}
	var err error
	if p.bin, err = cluster.Build(t.Context(), os.Stderr, append([]string{"kubectl"}, helms...)...); err != nil {
		t.Fatal(err)
	}
	must(t, os.CopyFS(filepath.Join(p.dir, "deploy"), os.DirFS("../../deploy")))
	return p
}

// try runs a command in the copy.
func (p *packager) try(script string) (out string, err error) {
	cmd := exec.CommandContext(p.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), "PATH="+p.bin+":"+os.Getenv("PATH"), "HOME="+p.dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", script, err, errs.String())
	}
	return string(text), err
}

func (p *packager) sh(script string) string {
	p.Helper()
	out, err := p.try(script)
	must(p, err)
	return out
}

// hash matches the hash in the name of a ConfigMap.
var hash = regexp.MustCompile(`\b(kube-nftproxy(?:-canary|-edge|-gpu)?)-[0-9a-z]{10}\b`)

// objectsIn returns the objects of YAML documents by kind and name, without the differences of Helm and kustomize: labels
// of objects (not those of pods and selectors), annotations of the kept ConfigMap, and the layout of its files.
func (p *packager) objectsIn(text string) map[string]any {
	p.Helper()
	all := map[string]any{}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(hash.ReplaceAllString(text, "$1-HASH")), 4096)
	for {
		var o map[string]any
		err := decoder.Decode(&o)
		if err == io.EOF {
			return all
		}
		must(p, err)
		if o == nil {
			continue
		}
		metadata := o["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		ofChart := labels["helm.sh/chart"] != nil
		for key := range labels {
			if key == "k8s-app" || strings.HasPrefix(key, "app.kubernetes.io/") || strings.HasPrefix(key, "helm.sh/") {
				delete(labels, key)
			}
		}
		if len(labels) == 0 {
			delete(metadata, "labels")
		}
		// Helm, Argo CD and Flux delete old ConfigMaps without them.
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			want := map[string]any{
				"argocd.argoproj.io/sync-options": "Prune=false", "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
				"kustomize.toolkit.fluxcd.io/prune": "disabled",
			}
			if ofChart {
				want["helm.sh/resource-policy"] = "keep"
			}
			lab.Same(p, want, annotations, "annotations of %s", metadata["name"])
			delete(metadata, "annotations")
		}
		if list, found, _ := unstructured.NestedSlice(o, "spec", "template", "spec", "initContainers"); found && len(list) == 0 {
			unstructured.RemoveNestedField(o, "spec", "template", "spec", "initContainers")
		}
		if data, ok := o["data"].(map[string]any); ok {
			for name, text := range data {
				var content any
				must(p, sigsyaml.Unmarshal([]byte(text.(string)), &content))
				data[name] = content
			}
		}
		name := fmt.Sprintf("%s %s", o["kind"], metadata["name"])
		if all[name] != nil {
			p.Errorf("%s is there twice", name)
		}
		all[name] = o
	}
}

// required are the required values of the chart, as in configured.
const required = " --namespace kube-system --set image.repository=" + ourImage + " --set apiServer.host=192.0.2.10 --set 'config.clusterCIDR=10.244.0.0/16\\,fd00:10:244::/56'"

// chartVariants are values of the chart, and the folders with the same objects. confined is the base with the component
// of deploy/seccomp.
var chartVariants = []struct{ release, values, folders string }{
	{"kube-nftproxy", "", "base"},
	{"kube-nftproxy-canary", "canary=true", "canary"},
	{"kube-nftproxy", "seccompProfile=kube-nftproxy.json", "confined"},
	{"kube-nftproxy", "startupTaint=true", "startup-taint"},
	{"kube-nftproxy", "hostPorts=true", "host-ports"},
	{"kube-nftproxy", "flowControl=true", "base flow-control"},
	{"kube-nftproxy-canary", "canary=true,flowControl=true", "canary"},
	{"kube-nftproxy-try", "serviceProxyName=try,existingConfigMap=kube-proxy", "beside"},
	{"kube-nftproxy", "podMonitor.enabled=true,prometheusRule.enabled=true,grafanaDashboard.enabled=true,config.metricsBindAddress=0.0.0.0:10249", "base monitoring"},
	{"kube-nftproxy-canary", "canary=true,podMonitor.enabled=true,prometheusRule.enabled=true,grafanaDashboard.enabled=true,config.metricsBindAddress=0.0.0.0:10249", "canary"},
}

// TestChartEqualsKustomize compares the objects of the chart with those of the folders of deploy/, from a package.
func TestChartEqualsKustomize(t *testing.T) {
	p := newPackager(t)
	p.sh(setImage + strings.Replace(fmt.Sprintf(configured, "192.0.2.10:6443"), "kubectl apply -k deploy/base", "", 1))
	p.sh("mkdir deploy/confined && printf 'resources: [../base]\\ncomponents: [../seccomp]\\n' > deploy/confined/kustomization.yaml")
	for _, helm := range helms {
		p.sh(helm + " package deploy/chart --version 0.1.0 --app-version dev --destination " + helm)
	}
	for _, v := range chartVariants {
		if strings.Contains(v.folders, "monitoring") {
			p.sh("echo 'metricsBindAddress: 0.0.0.0:10249' >> deploy/base/config.conf")
		}
		want := ""
		for folder := range strings.FieldsSeq(v.folders) {
			want += "---\n" + p.sh("kubectl kustomize deploy/"+folder)
		}
		for _, helm := range helms {
			got := p.sh(helm + " template --skip-tests " + v.release + " " + helm + "/kube-nftproxy-0.1.0.tgz" + required +
				" --set '" + v.values + "'")
			lab.Same(t, p.objectsIn(want), p.objectsIn(got), "%s with %q (-kustomize %s +chart)", helm, v.values, v.folders)
			if n := strings.Count(got, "helm.sh/chart: kube-nftproxy-0.1.0"); n != len(p.objectsIn(got)) {
				t.Errorf("%s: %d of %d objects have Helm's labels", helm, n, len(p.objectsIn(got)))
			}
		}
	}
}

// wrongValues are refused with a message; Helm 3 tries the first four.
var wrongValues = []struct{ set, message string }{
	{"imge.tag=v1", "additional properties 'imge' not allowed"},
	{"image.repository=", "Set image.repository to the name of the image in your registry"},
	{"image.digest=sha256:0", "at '/image/digest'"},
	{"apiServer.host=", "Set apiServer.host to the address of the API server"},
	{"apiServer.port=70000", "at '/apiServer/port'"},
	{"config.clusterCIDR=", "Set config.clusterCIDR to the prefix of the cluster's pods"},
	{"config.clusterCIDR=10.244.0.0", "at '/config/clusterCIDR'"},
	{"config.clusterCIDR=10.244.0.0/33", "at '/config/clusterCIDR'"},
	{"config.nodePortAddresses={foo}", "at '/config/nodePortAddresses/0'"},
	{"config.metricsBindAddress=0.0.0.0:x", "at '/config/metricsBindAddress'"},
	{"apiServer.host=10.0.0.300", "at '/apiServer/host'"},
	{"apiServer.host=https://api.example.com", "at '/apiServer/host'"},
	{"args={--foo}", "at '/args/0'"},
	{"env[0].value=512MiB", "at '/env/0'"},
	{"env[0].name=NODE_NAME", "at '/env/0/name'"},
	{"imagePullSecrets={pull}", "at '/imagePullSecrets/0'"},
	{"prometheusRule.disabled.None=true", "additional properties 'None' not allowed"},
	{"nodeGroups.edge.canary=true", "additional properties 'canary' not allowed"},
	{"nodeGroups.canary.sysctls=false", "invalid propertyName 'canary'"},
	{"nodeGroups.edge.sysctls=false", "set nodeGroupLabel"},
	{"config.mod=nftables", "additional properties 'mod' not allowed"},
	{"config.mode=ebpf", "at '/config/mode': value must be one of"},
	{"config.conntrack.tcpEstablishedTimeout=5", "at '/config/conntrack/tcpEstablishedTimeout'"},
	{"updateStrategy.rollingUpdate.maxUnavailable=0", "at '/updateStrategy/rollingUpdate/maxUnavailable'"},
	{"updateStrategy.type=Recreate", "at '/updateStrategy/type'"},
	{"seccompProfile=/etc/profile.json", "at '/seccompProfile'"},
	{"startupTaint=yes", "at '/startupTaint'"},
	{"startupTaint=true,serviceProxyName=try", "unset serviceProxyName"},
	{"flowControl=true,serviceProxyName=try", "unset serviceProxyName"},
	{"canary=true,serviceProxyName=try", "unset serviceProxyName"},
	{"serviceProxyName=canary", "unset serviceProxyName"},
	{"serviceProxyName=try", "a release with the name kube-nftproxy-try"},
	{"podMonitor.enabled=true", "set config.metricsBindAddress"},
}

// TestChartRefusesWrongValues: helm lint accepts the chart; wrong and missing values have a message each, and the API server is not asked.
func TestChartRefusesWrongValues(t *testing.T) {
	p := newPackager(t)
	for _, helm := range helms {
		p.sh(helm + " lint --strict deploy/chart" + required)
		some := wrongValues
		if helm != "helm-v4" { // the two have the same validator
			some = some[:4]
		}
		for _, v := range some {
			out, err := p.try(helm + " template kube-nftproxy deploy/chart" + required + " --set '" + v.set + "'")
			if err == nil || !strings.Contains(err.Error(), v.message) {
				t.Errorf("%s, %s: %v, want %q:\n%s", helm, v.set, err, v.message, out)
			}
		}
		if out, err := p.try(helm + " template kube-nftproxy deploy/chart" + strings.Replace(required, "kube-system", "default", 1)); err == nil || !strings.Contains(err.Error(), "--namespace kube-system") {
			t.Errorf("%s: namespace default: %v\n%s", helm, err, out)
		}
	}
}

// TestChartValues renders the values that no folder of deploy/ has, and kubeadm's configuration of kube-proxy.
func TestChartValues(t *testing.T) {
	p := newPackager(t)
	digest := "sha256:" + strings.Repeat("0a", 32)
	if err := os.WriteFile(filepath.Join(p.dir, "values.yaml"), []byte(`image: {repository: registry.example.com/kube-nftproxy, digest: "`+digest+`"}
imagePullSecrets: [{name: pull}]
apiServer: {host: "fd00::10", port: 443}
config: {clusterCIDR: "", detectLocalMode: NodeCIDR, mode: ipvs}
sysctls: false
args: [--config-reload=exit]
env: [{name: GOMEMLIMIT, value: 512MiB}]
updateStrategy: {rollingUpdate: {maxUnavailable: 3}}
nodeSelector: {pool: a}
affinity:
  podAntiAffinity: {}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [a]}]}]
tolerations: [{key: a, operator: Exists}]
resources: {limits: {memory: 1Gi}}
priorityClassName: other
podAnnotations: {note: a}
podLabels: {team: net}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := p.objectsIn(p.sh(
		"helm-v4 template --skip-tests kube-nftproxy deploy/chart --namespace net --values values.yaml"))
	text, err := sigsyaml.Marshal(objects)
	must(t, err)
	for _, want := range []string{
		"image: registry.example.com/kube-nftproxy@" + digest, "- name: pull", "server: https://[fd00::10]:443", "mode: ipvs", "detectLocalMode: NodeCIDR",
		"- --config-reload=exit", "value: 512MiB", "maxUnavailable: 3", "pool: a", "kubernetes.io/os: linux", "podAntiAffinity: {}", "key: a", "memory: 1Gi", "priorityClassName: other",
		"note: a", "team: net", "namespace: net",
	} {
		lab.Contains(t, string(text), "text", want)
	}
	if n := strings.Count(string(text), "key: service-proxy"); n != 2 {
		t.Errorf("%d of two terms of the affinity exclude the nodes of the canary", n)
	}
	for _, unwanted := range []string{"initContainers", "/proc/sys/net", "kube-system", "kubernetes.io/arch"} {
		if strings.Contains(string(text), unwanted) {
			t.Errorf("%q is still there", unwanted)
		}
	}
	if t.Failed() {
		t.Logf("%s", text)
	}

	// One alert less, and a label of the others.
	alerts := p.sh("helm-v4 template kube-nftproxy deploy/chart --show-only templates/prometheusrule.yaml" + required +
		" --set prometheusRule.enabled=true --set prometheusRule.disabled.KubeNftproxyDown=true" +
		" --set prometheusRule.disabled.KubeNftproxyReplaced=false --set prometheusRule.alertLabels.team=net")
	all := strings.Count(mustRead(t, "../../deploy/monitoring/rules.yaml"), "- alert:")
	n := strings.Count(alerts, "alert: ")
	if n != all-1 || strings.Contains(alerts, "alert: KubeNftproxyDown") || strings.Count(alerts, "team: net") != n {
		t.Errorf("%d alerts, want %d:\n%s", n, all-1, alerts)
	}

	// kubeadm's KubeProxyConfiguration, pasted.
	kubeadm := mustRead(t, "testdata/kubeadm-v1.36.3.yaml")
	pasted := p.objectsIn(kubeadm)["ConfigMap kube-proxy"].(map[string]any)["data"].(map[string]any)["config.conf"].(map[string]any)
	pasted["clusterCIDR"] = "10.244.0.0/16"
	writeManifest(t, filepath.Join(p.dir, "values.yaml"), map[string]any{"config": pasted, "image": map[string]any{"repository": ourImage}, "apiServer": map[string]any{"host": "192.0.2.10"}})
	for _, helm := range helms {
		p.sh(helm + " template kube-nftproxy deploy/chart --namespace kube-system --values values.yaml")
	}
}

// TestChartNodeGroups renders a DaemonSet for each group. A node has at most one of them, and each has a configuration.
func TestChartNodeGroups(t *testing.T) {
	p := newPackager(t)
	values := mustReadPage(t, "deploy/chart/README.md", "yaml")
	must(t, os.WriteFile(filepath.Join(p.dir, "values.yaml"), []byte(values["Required values"][0]+"---\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(p.dir, "groups.yaml"), []byte(values["Groups of nodes"][0]+
		"    config: {clusterCIDR: 10.0.0.0/8}\n    sysctls: false\n  gpu: {}\n"), 0o600))
	objects := p.objectsIn(p.sh("helm-v4 template --skip-tests kube-nftproxy deploy/chart --namespace kube-system" +
		" --values values.yaml --values groups.yaml"))
	for _, pool := range []string{"", "edge", "gpu"} {
		node := &corev1.Node{}
		node.Labels = map[string]string{"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
		if pool != "" {
			node.Labels["example.com/pool"] = pool
		}
		var got []string
		for name, o := range objects {
			if !strings.HasPrefix(name, "DaemonSet ") {
				continue
			}
			var d appsv1.DaemonSet
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.(map[string]any), &d))
			if kubelet.Suits(node, d.Spec.Template.Spec) {
				got = append(got, d.Name)
			}
			text := fmt.Sprint(o, objects["ConfigMap "+configMapOf(&corev1.Pod{Spec: d.Spec.Template.Spec})])
			for _, own := range []string{"--conntrack-max-per-core=16384", "type:OnDelete", "clusterCIDR:10.0.0.0/8"} {
				if strings.Contains(text, own) != (d.Name == "kube-nftproxy-edge") {
					t.Errorf("%s and %s:\n%s", d.Name, own, text)
				}
			}
			if hasInit := len(d.Spec.Template.Spec.InitContainers) == 1; hasInit != (d.Name != "kube-nftproxy-edge") {
				t.Errorf("%s: an init container: %t", d.Name, hasInit)
			}
		}
		want := "kube-nftproxy"
		if pool != "" {
			want += "-" + pool
		}
		lab.Same(t, []string{want}, got, "DaemonSets of a node of the pool %q", pool)
	}
}

// TestExamplesOfGitOps renders the chart with the values in the examples for Argo CD and Flux, from an archive of the
// chart's folder in git, as Flux makes it.
func TestExamplesOfGitOps(t *testing.T) {
	p := newPackager(t)
	p.sh(publish + "git archive v0.1.0 deploy/chart | (mkdir ../plain && tar --extract --directory ../plain)")
	values := map[string]any{}
	for _, block := range mustReadPage(t, deployPage, "yaml")["Argo CD and Flux"] {
		for document := range strings.SplitSeq(block, "---\n") {
			var o struct {
				Kind string
				Spec struct {
					Source struct{ Helm struct{ ValuesObject any } }
					Values any
				}
			}
			must(t, sigsyaml.Unmarshal([]byte(document), &o))
			switch o.Kind {
			case "Application":
				values[o.Kind] = o.Spec.Source.Helm.ValuesObject
			case "HelmRelease":
				values[o.Kind] = o.Spec.Values
			}
		}
	}
	if len(values) != 2 {
		t.Fatalf("%d examples, want two", len(values))
	}
	for kind, v := range values {
		writeManifest(t, filepath.Join(p.dir, "values.yaml"), v)
		got := p.sh("cd plain && helm-v4 template kube-nftproxy deploy/chart --namespace kube-system --values ../values.yaml")
		for _, want := range []string{"server: https://192.0.2.10:6443\n", "clusterCIDR: 10.244.0.0/16\n", "image: registry.example.com/kube-nftproxy:"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in:\n%s", kind, want, got)
			}
		}
	}
}

// TestRemoteBases builds the folders of deploy/ from a URL: the results are those from the checkout.
func TestRemoteBases(t *testing.T) {
	p := newPackager(t)
	p.sh(publish)
	command := mustReadPage(t, deployPage, "sh")["Deploying kube-nftproxy"][0]
	command = strings.NewReplacer("kubectl apply -k", "kubectl kustomize", repositoryURL, "file://"+p.dir+"/repository").Replace(command)
	for _, folder := range []string{"monitoring", "canary"} { // canary builds on the base
		got := p.sh(strings.Replace(command, "monitoring", folder, 1))
		lab.Same(t, p.sh("kubectl kustomize deploy/"+folder), got, "deploy/%s (-checkout +URL)", folder)
	}
}

const deployPage = "deploy/README.md"

// testChart follows the section Helm of deploy/README.md, in place of deploy/base, with each Helm: the second one continues with the release
// of the first one.
func testChart(t *testing.T, s *site) {
	lab.Must(t, lab.Err(cluster.Build(t.Context(), os.Stderr, helms...)))
	page := mustReadPage(t, deployPage, "sh")
	with := func(helm, heading string, block int) string {
		return strings.ReplaceAll(page["Helm: "+heading][block], "helm ", helm+" ")
	}
	run := func(helm, heading string, block int) {
		t.Helper()
		s.sh(with(helm, heading, block))
	}
	values := mustReadPage(t, deployPage, "yaml")["Helm: install"][0]
	server := s.api.Server()
	values = strings.NewReplacer("192.0.2.10", server.Addr().String(), "6443", fmt.Sprint(server.Port())).Replace(values)
	must(t, os.WriteFile(filepath.Join(s.checkout, "my-values.yaml"), []byte(values), 0o600))
	nodePort := netip.AddrPortFrom(s.Node.Addrs()[0], s.webAddrs()[6].Port())
	run("", "install", 1) // kubectl delete -k
	s.sh("kubectl -n kube-system delete configmap -l app.kubernetes.io/name=kube-nftproxy")
	for _, helm := range helms {
		t.Run(helm, func(t *testing.T) {
			run(helm, "install", 0)
			// Defaults of the API server are no conflict for a tool that applies on the server, such as Flux.
			s.sh(helm + " get manifest kube-nftproxy --namespace kube-system" +
				" | kubectl apply --server-side --dry-run=server --field-manager=other --filename -")
			before, _ := s.pod("kube-nftproxy")
			s.reachWeb("pod-0")
			reach(t, s.Client, nodePort, "pod-0")
			testWrongValue(t, s, helm)
			testCanary(t, s, with(helm, "canary", 0), with(helm, "canary", 1))
			run(helm, "upgrade", 0)
			s.sh("kubectl -n kube-system get configmap " + configMapOf(before)) // nodes whose turn has not come need it
			if after, _ := s.pod("kube-nftproxy"); after.UID == before.UID {
				t.Error("the pod continues with a changed configuration")
			}
			reach(t, s.Client, nodePort) // no server any more
			run(helm, "roll back", 0)
			s.pod("kube-nftproxy")
			reach(t, s.Client, nodePort, "pod-0")
		})
	}
	// The API server accepts all values.
	s.sh(helms[0] + " template kube-nftproxy deploy/chart --namespace kube-system --values my-values.yaml" +
		" --set startupTaint=true,flowControl=true,nodeGroupLabel=example.com/pool,imagePullSecrets[0].name=pull" +
		" --set nodeGroups.edge.updateStrategy.type=OnDelete,nodeGroups.gpu.sysctls=false" +
		" | kubectl apply --dry-run=server --filename -")
	refused := strings.Replace(with(helms[0], "upgrade", 0), "--set ", "--set canary=true --set ", 1)
	before, _ := s.pod("kube-nftproxy")
	if out, err := s.try(refused); err == nil || !strings.Contains(out, "a release with the name kube-nftproxy-canary") {
		t.Errorf("%s: %v, want a refusal:\n%s", refused, err, out)
	}
	if after, _ := s.pod("kube-nftproxy"); after.UID != before.UID {
		t.Error("the refused upgrade has replaced the pod")
	}
	run(helms[len(helms)-1], "remove", 0)
	if out := s.sh("kubectl -n kube-system get daemonsets,configmaps,serviceaccounts,clusterrolebindings,pods -o name | grep nftproxy || true"); out != "" {
		t.Errorf("left after the removal:\n%s", out)
	}
	reach(t, s.Client, s.clusterIPs("web")[0], "pod-0") // the rules stay
}

// configMapOf returns the name of the configuration of a pod.
func configMapOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.Name == "config" {
			return v.ConfigMap.Name
		}
	}
	return ""
}

// testWrongValue runs the refused command of the page, and compares the message.
func testWrongValue(t *testing.T, s *site, helm string) {
	t.Helper()
	command, message, _ := strings.Cut(mustReadPage(t, deployPage, "console")["Helm: install"][0], "\n")
	out, err := s.try(strings.Replace(strings.TrimPrefix(command, "$ "), "helm", helm, 1))
	if err == nil || !strings.Contains(out, strings.TrimSpace(message)) {
		t.Errorf("%s: %v, want the message of the page:\n%s", command, err, out)
	}
}
