package watch

import (
	"fmt"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fill sets every field of an object, with two elements in lists and one in maps.
func fill(v reflect.Value, counter *int) {
	*counter++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), counter)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Time]() {
			v.Set(reflect.ValueOf(metav1.Unix(int64(1_000_000+*counter), 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), counter)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), counter)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, counter)
		fill(value, counter)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text-" + string(rune('a'+*counter%26)) + string(rune('a'+*counter/26%26)))
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(*counter))
	case reflect.Uint8:
		v.SetUint(uint64(*counter % 256))
	case reflect.Bool:
		v.SetBool(true)
	}
}

// TestStripping sets all fields of a Service. It compares the stored one, field by field, with one in which the other
// fields are cleared.
func TestStripping(t *testing.T) {
	counter := 0
	service := &corev1.Service{}
	fill(reflect.ValueOf(service).Elem(), &counter)
	got, err := (&Config{}).transformer().transform(ofThisProxy(service))
	lab.Must(t, err)
	lab.Same(t, strippedService(service), got.(*object).value.(*corev1.Service), "stored Service")
}

// ofThisProxy sets a label without a meaning, and an annotation that the program reads.
func ofThisProxy(s *corev1.Service) *corev1.Service {
	s.Labels, s.Annotations = map[string]string{"a": "b"}, map[string]string{model.AnnotationsOf(false)[0]: "c"}
	return s
}

func strippedService(s *corev1.Service) *corev1.Service {
	out := s.DeepCopy()
	out.TypeMeta = metav1.TypeMeta{}
	out.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID, CreationTimestamp: s.CreationTimestamp, Annotations: s.Annotations}
	spec := &out.Spec
	spec.Selector, spec.LoadBalancerIP, spec.ExternalName, spec.PublishNotReadyAddresses = nil, "", "", false
	spec.IPFamilyPolicy, spec.AllocateLoadBalancerNodePorts, spec.TrafficDistribution = nil, nil, nil
	for i, p := range spec.Ports {
		spec.Ports[i] = corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort}
	}
	out.Status.Conditions = nil
	for i, in := range out.Status.LoadBalancer.Ingress {
		out.Status.LoadBalancer.Ingress[i] = corev1.LoadBalancerIngress{IP: in.IP, IPMode: in.IPMode}
	}
	return out
}

// TestUnknownAnnotationsAreLimited: a Service may have annotations with the program's prefix and without a meaning. The
// store keeps only the first of these by name. All annotations with a meaning are stored.
func TestUnknownAnnotationsAreLimited(t *testing.T) {
	service := bigService(1)
	service.Annotations = map[string]string{"example.com/other": ""}
	want := map[string]string{}
	for _, name := range model.AnnotationsOf(false) {
		service.Annotations[name], want[name] = "value", "value"
	}
	for i := range 12_000 { // the API server allows 256 KiB of annotations
		name := fmt.Sprintf("kube-nftproxy.io/%05d", i)
		if service.Annotations[name] = "x"; i < 20 {
			want[name] = ""
		}
	}
	got := encodeForTest(t, service).value.(*corev1.Service)
	lab.Same(t, want, got.Annotations, "stored annotations")
}

// TestFieldsThatAreReadAreStored finds all fields of Services that other packages read, and looks them up in a stored
// Service that had all fields. A field that is not stored is empty for its reader.
func TestFieldsThatAreReadAreStored(t *testing.T) {
	counter := 0
	service := &corev1.Service{}
	fill(reflect.ValueOf(service).Elem(), &counter)
	item, err := (&Config{}).transformer().transform(ofThisProxy(service))
	lab.Must(t, err)
	stored := map[string]bool{}
	noteStored(reflect.ValueOf(item.(*object).value).Elem(), stored)
	cfg := &packages.Config{
		// The lanes without the race detector have compiled the packages with this setting.
		Dir: "../..", Env: append(os.Environ(), "CGO_ENABLED=0"),
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedTypes |
			packages.NeedSyntax | packages.NeedTypesInfo,
	}
	list, err := packages.Load(cfg, "./pkg/model", "./pkg/proxy", "./pkg/beside/health", "./pkg/beside/report", "./pkg/inspect/console", "./cmd/...")
	lab.Must(t, err)
	read := 0
	for _, p := range list {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		for expression, selection := range p.TypesInfo.Selections {
			name, at := selectedField(selection), p.Fset.Position(expression.Pos())
			if p.Name == "console" && slices.Contains([]string{"api.go", "declared.go", "objects.go"}, filepath.Base(at.Filename)) {
				continue // these files read objects with all fields, directly from the API server, or set the kind
			}
			isStored, isField := stored[name]
			if !isField {
				continue
			}
			if read++; !isStored {
				t.Errorf("%s: %s is read, and missing in stripService", at, name)
			}
		}
	}
	if read < 30 {
		t.Errorf("only %d fields were found", read)
	}
}

// selectedField returns, for example, k8s.io/api/core/v1.ServiceSpec.ClusterIP. The type is that of the value before
// the first dot, so that metadata of a Service differs from that of a Node.
func selectedField(s *types.Selection) string {
	of := s.Recv()
	if p, ok := of.(*types.Pointer); ok {
		of = p.Elem()
	}
	return types.TypeString(of, nil) + "." + s.Obj().Name()
}

// noteStored records for each field of a stored value whether it is set, recursively. Go promotes the fields of
// embedded metadata.
func noteStored(v reflect.Value, stored map[string]bool) {
	for v.Kind() == reflect.Slice && v.Len() > 0 || v.Kind() == reflect.Pointer && !v.IsNil() {
		if v.Kind() == reflect.Slice {
			v = v.Index(0)
		} else {
			v = v.Elem()
		}
	}
	if of := v.Type(); v.Kind() == reflect.Struct && strings.HasPrefix(of.PkgPath(), "k8s.io/api") && of != reflect.TypeFor[metav1.Time]() {
		for i := range of.NumField() {
			f := of.Field(i)
			if f.Anonymous {
				for _, inner := range reflect.VisibleFields(f.Type) {
					stored[of.PkgPath()+"."+of.Name()+"."+inner.Name] = !v.Field(i).FieldByIndex(inner.Index).IsZero()
				}
			}
			stored[of.PkgPath()+"."+of.Name()+"."+f.Name] = !v.Field(i).IsZero()
			noteStored(v.Field(i), stored)
		}
	}
}
