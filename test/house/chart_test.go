package house

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const chart = "deploy/chart/"

// object is a JSON object.
type object = map[string]any

// TestChartSchema compares the schema of the values with the fields of KubeProxyConfiguration, the flags of the
// program, the names of the alerts, and the comments of values.yaml.
func TestChartSchema(t *testing.T) {
	var schema, rule object
	lab.Must(t, json.Unmarshal([]byte(mustRead(t, chart+"values.schema.json")), &schema))
	properties := schema["properties"].(object)
	properties["config"] = configSchema()
	properties["apiServer"].(object)["properties"].(object)["host"].(object)["pattern"] = either(ipv4, ipv6, hostName)
	flags := ignoredFlags()
	for _, m := range usage.FindAllStringSubmatch(mustHelp(t), -1) {
		flags = append(flags, m[1])
	}
	slices.Sort(flags)
	known := "^--(" + strings.Join(flags, "|") + ")(=.*)?$"
	properties["args"].(object)["items"] = object{"type": "string", "pattern": known}
	lab.Must(t, yaml.Unmarshal([]byte(mustRead(t, "deploy/monitoring/rules.yaml")), &rule))
	alerts := object{}
	for _, group := range rule["spec"].(object)["groups"].([]any) {
		for _, r := range group.(object)["rules"].([]any) {
			alerts[r.(object)["alert"].(string)] = object{"type": "boolean"}
		}
	}
	properties["prometheusRule"].(object)["properties"].(object)["disabled"].(object)["properties"] = alerts
	for _, v := range chartValues(t) {
		at := schema
		for name := range strings.SplitSeq(v.path, ".") {
			at = at["properties"].(object)[name].(object)
		}
		at["description"] = v.meaning
	}
	want, err := json.MarshalIndent(schema, "", "  ")
	lab.Must(t, err)
	checkFile(t, chart+"values.schema.json", string(want)+"\n")
}

// checkFile compares a file with its wanted content, or writes it.
func checkFile(t *testing.T, name, want string) {
	t.Helper()
	if *update {
		lab.Must(t, os.WriteFile(filepath.Join(root, name), []byte(want), 0o644)) //nolint:gosec // it is public
	}
	lab.Same(t, want, mustRead(t, name), "%s is out of date; run make update", name)
}

// Regular expressions of addresses. That of IPv6 also matches some wrong ones, which the program refuses.
const (
	byteText   = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4       = byteText + `(\.` + byteText + `){3}`
	ipv6       = `([0-9A-Fa-f]{0,4}:){2,7}([0-9A-Fa-f]{0,4}|` + ipv4 + `)`
	cidr       = `(` + ipv4 + `/(3[0-2]|[12]?[0-9])|` + ipv6 + `/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))`
	hostName   = `([A-Za-z0-9-]+\.)*[A-Za-z][A-Za-z0-9-]*`
	withPort   = `(` + ipv4 + `|` + ipv6 + `|\[` + ipv6 + `\])(:[0-9]{1,5})?`
	cidrOfEach = cidr + `(,` + cidr + `)?`
)

// either returns a pattern of all values that match one of the expressions, and of the empty value.
func either(expressions ...string) string {
	return "^(" + strings.Join(expressions, "|") + ")?$"
}

// configSchema returns the schema of a KubeProxyConfiguration.
func configSchema() object {
	config := schemaOf(reflect.TypeFor[kubeproxy.KubeProxyConfiguration]())
	fields := config["properties"].(object)
	fields["mode"].(object)["enum"] = []any{"", "iptables", "ipvs", "nftables"}
	fields["detectLocalMode"].(object)["enum"] = []any{
		"", "BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR",
	}
	fields["bindAddress"].(object)["pattern"] = either(ipv4, ipv6)
	fields["clusterCIDR"].(object)["pattern"] = either(cidrOfEach)
	fields["healthzBindAddress"].(object)["pattern"] = either(withPort)
	fields["metricsBindAddress"].(object)["pattern"] = either(withPort)
	nodePorts := "^(all|localhost|primary|" + cidr + ")$"
	fields["nodePortAddresses"].(object)["items"] = object{"type": "string", "pattern": nodePorts}
	ipvs := fields["ipvs"].(object)["properties"].(object)
	ipvs["excludeCIDRs"].(object)["items"] = object{"type": "string", "pattern": "^" + cidr + "$"}
	return config
}

// chartValue is a value of the chart with its comment.
type chartValue struct{ path, meaning string }

// chartValues returns the values with a comment in values.yaml, except the fields of the value "config".
func chartValues(t *testing.T) (all []chartValue) {
	t.Helper()
	key := regexp.MustCompile(`^( *)(\w+):`)
	var path, comment []string
	for line := range strings.SplitSeq(mustRead(t, chart+"values.yaml"), "\n") {
		text, isComment := strings.CutPrefix(strings.TrimSpace(line), "# ")
		m := key.FindStringSubmatch(line)
		switch {
		case isComment:
			comment = append(comment, text)
			continue
		case m != nil && len(m[1])/2 <= len(path): // not in a list
			path = append(path[:len(m[1])/2], m[2])
			if comment != nil {
				all = append(all, chartValue{strings.Join(path, "."), strings.Join(comment, " ")})
			}
		}
		comment = nil
	}
	return all
}

// TestChartReadme compares the table of values in the README of the chart with values.yaml.
func TestChartReadme(t *testing.T) {
	var defaults object
	lab.Must(t, yaml.Unmarshal([]byte(mustRead(t, chart+"values.yaml")), &defaults))
	var b strings.Builder
	b.WriteString("| Value | Default | Meaning |\n|---|---|---|\n")
	for _, v := range chartValues(t) {
		value := any(defaults)
		for name := range strings.SplitSeq(v.path, ".") {
			value = value.(object)[name]
		}
		text, err := json.Marshal(value)
		lab.Must(t, err)
		if len(text) > 60 {
			text = []byte("see values.yaml")
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.path, text, v.meaning)
	}
	checkPart(t, chart+"README.md", "values", b.String())
}

// schemaOf returns the schema of a type of the configuration. Each field may be null, as in kubeadm's ConfigMap.
func schemaOf(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return object{"type": []any{"string", "null"}, "pattern": `^0$|^-?([0-9.]+(ns|us|ms|s|m|h))+$`}
	case reflect.TypeFor[logsapi.LoggingConfiguration]():
		return object{"type": []any{"object", "null"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		properties := object{}
		addFields(properties, t)
		return object{"type": []any{"object", "null"}, "properties": properties, "additionalProperties": false}
	case reflect.Map:
		return object{"type": []any{"object", "null"}, "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return object{"type": []any{"array", "null"}, "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return object{"type": []any{"boolean", "null"}}
	case reflect.String:
		return object{"type": []any{"string", "null"}}
	case reflect.Float32:
		return object{"type": []any{"number", "null"}}
	default:
		return object{"type": []any{"integer", "null"}}
	}
}

func addFields(properties object, t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" { // the fields of an embedded type
			addFields(properties, f.Type)
			continue
		}
		properties[name] = schemaOf(f.Type)
	}
}

// TestChartValuesAreInTheSchema: the schema refuses unknown names, so it has to have each value, and values.yaml has to
// have each name, with a comment.
func TestChartValuesAreInTheSchema(t *testing.T) {
	var values, schema object
	for name, into := range map[string]*object{"values.yaml": &values, "values.schema.json": &schema} {
		lab.Must(t, yaml.Unmarshal([]byte(mustRead(t, chart+name)), into))
	}
	described := map[string]bool{}
	for _, v := range chartValues(t) {
		described["."+v.path] = true
	}
	groups := schema["properties"].(object)["nodeGroups"].(object)["additionalProperties"].(object)["properties"].(object)
	for name := range groups {
		if _, ok := values[name]; !ok {
			t.Errorf("a node group has the field %s, which is no value", name)
		}
	}
	whole := []string{
		".affinity", ".config", ".nodeGroups", ".nodeSelector", ".prometheusRule.disabled", ".resources", ".updateStrategy",
	}
	var compare func(path string, values, schema object)
	compare = func(path string, values, schema object) {
		properties, closed := schema["properties"].(object)
		if path != "" && (!closed || slices.Contains(whole, path)) {
			if !described[path] {
				t.Errorf("values.yaml does not describe %s", path)
			}
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("the schema of %q permits unknown names", path)
		}
		if path == "" {
			delete(properties, "global") // Helm adds it to a dependency
		}
		lab.Same(t, slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(values)), "names in %q (-schema +values.yaml)", path)
		for name, value := range values {
			inner, _ := value.(object)
			compare(path+"."+name, inner, properties[name].(object))
		}
	}
	compare("", values, schema)
}

// TestArchitecturesAreThoseOfTheImage: pods run only on Nodes for which hack/image.sh builds the image.
func TestArchitecturesAreThoseOfTheImage(t *testing.T) {
	built := regexp.MustCompile(`\$\{ARCHITECTURES:-(.*?)\}`).FindStringSubmatch(mustRead(t, "hack/image.sh"))
	if built == nil {
		t.Fatal("hack/image.sh has no default of ARCHITECTURES")
	}
	terms := the[*appsv1.DaemonSet](t, manifests(t)).Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 2 || terms[0].MatchExpressions[0].Key != "kubernetes.io/arch" {
		t.Fatalf("node affinity %+v", terms)
	}
	lab.Same(t, strings.Fields(built[1]), terms[0].MatchExpressions[0].Values, "architectures (-image +DaemonSet)")
}

// TestChartIsPlain: the chart works from a checkout of its folder alone. It has no symbolic links, and its copies of
// files of deploy/monitoring are equal.
func TestChartIsPlain(t *testing.T) {
	for _, name := range []string{"dashboard.json", "rules.yaml"} {
		checkFile(t, chart+"files/"+name, mustRead(t, "deploy/monitoring/"+name))
	}
	lab.Must(t, filepath.WalkDir(filepath.Join(root, chart), func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !e.Type().IsRegular() {
			t.Errorf("%s is no file", name)
		}
		return err
	}))
}

// TestChartChanges compares the annotation for Artifact Hub with the changelog.
func TestChartChanges(t *testing.T) {
	dir := t.TempDir()
	script, err := filepath.Abs(filepath.Join(root, "hack/chart-annotations.sh"))
	lab.Must(t, err)
	write := func(name, text string) { lab.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	write("CHANGELOG.md", `# Changelog

## [Unreleased]

### Added

- A "new" flag, in [flags](docs/flags.md) and
  two lines.

### Fixed

- A `+"`bug`"+`: gone.

### Before this list began

- Nothing.

## [0.1.0]

### Removed

- One.
`)
	for version, want := range map[string][]any{
		"0.1.0": {object{"kind": "removed", "description": "One."}},
		"0.2.0": { // a release without a section
			object{"kind": "added", "description": `A "new" flag, in flags and two lines.`},
			object{"kind": "fixed", "description": "A `bug`: gone."},
		},
	} {
		cmd := exec.Command("bash", script, version, "registry.example.com/a:v1")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var all struct{ Annotations map[string]string }
		lab.Must(t, yaml.Unmarshal(append([]byte(mustRead(t, chart+"Chart.yaml")), out...), &all))
		for name, list := range map[string][]any{
			"changes": want, "images": {object{"name": "kube-nftproxy", "image": "registry.example.com/a:v1"}},
		} {
			var got []any
			lab.Must(t, yaml.Unmarshal([]byte(all.Annotations["artifacthub.io/"+name]), &got))
			lab.Same(t, list, got, "%s of version %s", name, version)
		}
	}
}
