package house

import (
	"encoding/json"
	"maps"
	"os"
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

// TestChartKnowsTheConfiguration compares the schema of the value "config" with the fields of KubeProxyConfiguration.
func TestChartKnowsTheConfiguration(t *testing.T) {
	var schema object
	lab.Must(t, json.Unmarshal([]byte(mustRead(t, chart+"values.schema.json")), &schema))
	config := schemaOf(reflect.TypeFor[kubeproxy.KubeProxyConfiguration]())
	limits := config["properties"].(object)
	limits["mode"].(object)["enum"] = []any{"", "iptables", "ipvs", "nftables"}
	limits["detectLocalMode"].(object)["enum"] = []any{"", "BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR"}
	limits["clusterCIDR"].(object)["pattern"] = `^$|^[0-9A-Fa-f.:]+/[0-9]{1,3}(,[0-9A-Fa-f.:]+/[0-9]{1,3})?$`
	schema["properties"].(object)["config"] = config
	want, err := json.MarshalIndent(schema, "", "  ")
	lab.Must(t, err)
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(filepath.Join(root, chart, "values.schema.json"), want, 0o644); err != nil { //nolint:gosec // it is public
			t.Fatal(err)
		}
	}
	lab.Same(t, string(want), mustRead(t, chart+"values.schema.json"), "values.schema.json does not have the fields of KubeProxyConfiguration; run make update")
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

// TestChartValuesAreInTheSchema: the schema refuses unknown names, so it has to have each value, and values.yaml has to explain each name.
func TestChartValuesAreInTheSchema(t *testing.T) {
	var values, schema object
	for name, into := range map[string]*object{"values.yaml": &values, "values.schema.json": &schema} {
		lab.Must(t, yaml.Unmarshal([]byte(mustRead(t, chart+name)), into))
	}
	var compare func(path string, values, schema object)
	compare = func(path string, values, schema object) {
		properties, closed := schema["properties"].(object)
		if !closed {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("the schema of %q permits unknown names", path)
		}
		if path == ".config" || path == ".resources" { // types of Kubernetes
			return
		}
		if path == "" {
			delete(properties, "global") // Helm adds it to a dependency
		}
		lab.Same(t, slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(values)), "names in %q (-schema +values.yaml)", path)
		for name, value := range values {
			if inner, ok := value.(object); ok {
				compare(path+"."+name, inner, properties[name].(object))
			}
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

// TestChartHasNoCopies: the chart reads the files of deploy/, by symbolic links.
func TestChartHasNoCopies(t *testing.T) {
	for _, folder := range []string{"base", "beside", "flow-control", "monitoring", "startup-taint"} {
		if to, err := os.Readlink(filepath.Join(root, chart, folder)); err != nil || to != "../"+folder {
			t.Errorf("%s%s links to %q, %v", chart, folder, to, err)
		}
	}
}
