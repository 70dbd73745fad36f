package watch

import (
	"errors"
	"fmt"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/go/packages"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

// TestStripping sets all fields of objects. It compares the stripped form, field by field, with Go structs in which the other
// fields are cleared.
func TestStripping(t *testing.T) {
	counter := 0
	service, slice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
	fill(reflect.ValueOf(service).Elem(), &counter)
	fill(reflect.ValueOf(slice).Elem(), &counter)
	slice.Labels = map[string]string{"a": "b"}
	service.TypeMeta, slice.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{} // not part of the encoded form

	gotService, gotSlice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
	lab.Must(t, errors.Join(encodeForTest(t, service).decode(gotService), encodeForTest(t, slice).decode(gotSlice)))
	wantService := strippedService(service)
	for _, diff := range []string{cmp.Diff(wantService, gotService), cmp.Diff(strippedSlice(slice), gotSlice)} {
		if diff != "" {
			t.Errorf("stripped object (-want +got):\n%s", diff)
		}
	}
}

func strippedService(s *corev1.Service) *corev1.Service {
	out := s.DeepCopy()
	out.ObjectMeta = metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion, UID: s.UID, CreationTimestamp: s.CreationTimestamp,
	}
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

func strippedSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := s.DeepCopy()
	out.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion}
	for i := range out.Ports {
		out.Ports[i].AppProtocol = nil
	}
	for i, e := range out.Endpoints {
		out.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses[:1], Conditions: e.Conditions, NodeName: e.NodeName, Hints: e.Hints}
	}
	return out
}

// TestUnknownAnnotationsAreLimited: a Service may have annotations with the program's prefix and without a meaning. The store keeps only the first
// of these by name. All annotations with a meaning are stored.
func TestUnknownAnnotationsAreLimited(t *testing.T) {
	service := bigService(1)
	service.Annotations = map[string]string{"example.com/other": ""}
	want := map[string]string{}
	for _, name := range model.AnnotationsOf(false) {
		service.Annotations[name], want[name] = "value", "value"
	}
	for i := range 12_000 { // the API server allows 256 KiB of annotations
		name := fmt.Sprintf("kube-nftproxy.io/%05d", i)
		if service.Annotations[name] = "x"; i < mostUnknown {
			want[name] = ""
		}
	}
	got := &corev1.Service{}
	lab.Must(t, encodeForTest(t, service).decode(got))
	lab.Same(t, want, got.Annotations, "stored annotations")
}

// TestFieldsThatAreReadAreStored finds all fields of Services and EndpointSlices that other packages read, and looks them up in
// the lists of stored fields. A field that is not stored is empty for its reader.
func TestFieldsThatAreReadAreStored(t *testing.T) {
	known := map[string]bool{}
	noteStored(reflect.TypeFor[corev1.Service](), keptOfService(usual), known)
	noteStored(reflect.TypeFor[discoveryv1.EndpointSlice](), keptOfSlice(usual, true, true), known)
	for _, object := range []string{"k8s.io/api/core/v1.Service", "k8s.io/api/discovery/v1.EndpointSlice"} {
		known[object+".Name"], known[object+".Namespace"] = true, true // stored apart from the encoded form
	}
	cfg := &packages.Config{Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo, Dir: "../.."}
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
			stored, isField := known[name]
			if !isField {
				continue
			}
			if read++; !stored {
				t.Errorf("%s: %s is read, and missing in keptOfService or keptOfSlice", at, name)
			}
		}
	}
	if read < 30 {
		t.Errorf("only %d fields were found", read)
	}
}

// selectedField returns, for example, k8s.io/api/core/v1.ServiceSpec.ClusterIP. The type is that of the value before the first dot, so that
// metadata of a Service differs from that of a Node.
func selectedField(s *types.Selection) string {
	of := s.Recv()
	if p, ok := of.(*types.Pointer); ok {
		of = p.Elem()
	}
	return types.TypeString(of, nil) + "." + s.Obj().Name()
}

var usual = model.DefaultLimits()

// noteStored records for each field of a type whether it is stored, recursively for the types of partly stored fields.
func noteStored(of reflect.Type, keep kept, known map[string]bool) {
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		var stored kept
		if _, rest, ok := strings.Cut(f.Tag.Get("protobuf"), ","); ok {
			text, _, _ := strings.Cut(rest, ",")
			if number, err := strconv.Atoi(text); err == nil && number < len(keep.fields) {
				stored = keep.fields[number]
			}
		}
		if f.Anonymous {
			noteEmbedded(of, f.Type, stored, known)
			continue
		}
		known[of.PkgPath()+"."+of.Name()+"."+f.Name] = stored.how != 0 || stored.fields != nil || stored.keys != nil
		if stored.fields != nil {
			noteStored(f.Type, stored, known)
		}
	}
}

// noteEmbedded records the fields of an object's embedded metadata, which Go promotes to the object.
func noteEmbedded(of, embedded reflect.Type, keep kept, known map[string]bool) {
	inner := map[string]bool{}
	noteStored(embedded, keep, inner)
	for name, stored := range inner {
		if field, ok := strings.CutPrefix(name, embedded.PkgPath()+"."+embedded.Name()+"."); ok {
			known[of.PkgPath()+"."+of.Name()+"."+field] = stored
		}
	}
}

// FuzzRead: a stripped object that DecodeService or DecodeSlice accepts is the same for the generated decoder.
func FuzzRead(f *testing.F) {
	counter := 0
	service, slice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
	fill(reflect.ValueOf(service).Elem(), &counter)
	fill(reflect.ValueOf(slice).Elem(), &counter)
	service.Annotations = map[string]string{model.AnnotationsOf(false)[0]: "a", model.AnnotationsOf(false)[1]: ""}
	slice.Annotations = map[string]string{model.AnnotationsOf(true)[0]: "a"}
	for _, o := range []message{service, slice, bigService(1), bigSlice(1, 2)} {
		data, err := o.Marshal()
		lab.Must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var gotService, wantService corev1.Service
		var gotSlice, wantSlice discoveryv1.EndpointSlice
		for _, o := range []struct {
			keep      kept
			read      func(string) error
			got, want message
		}{
			{keptOfService(usual), func(s string) error { return DecodeService(s, &gotService) }, &gotService, &wantService},
			{keptOfSlice(usual, true, true), func(s string) error { return DecodeSlice(s, &gotSlice) }, &gotSlice, &wantSlice},
		} {
			stripped, err := strip(nil, data, o.keep.fields)
			if err != nil || o.read(string(stripped)) != nil {
				continue
			}
			if err := o.want.Unmarshal(stripped); err != nil {
				t.Fatalf("the generated decoder fails: %v", err)
			}
			if diff := cmp.Diff(o.want, o.got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-generated +own):\n%s", diff)
			}
		}
	})
}

// FuzzStrip: any input is stripped to a valid message or is an error. Stripping twice equals stripping once.
func FuzzStrip(f *testing.F) {
	data, err := bigSlice(1, 2).Marshal()
	lab.Must(f, err)
	f.Add(data)
	f.Add(data[:len(data)-3])
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := strip(nil, data, keptOfSlice(usual, false, false).fields)
		if err != nil {
			return
		}
		if len(once) > len(data)+16*len(data) {
			t.Errorf("%d bytes became %d", len(data), len(once))
		}
		twice, err := strip(nil, once, keptOfSlice(usual, false, false).fields)
		if err != nil {
			t.Fatalf("the stripped message is invalid: %v", err)
		}
		lab.Same(t, once, twice, "stripped again (-once +twice)")
	})
}
