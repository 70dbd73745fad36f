package watch

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// parser reads manifests. The decoder knows all kinds of the API groups that it needs, and is strict: a misspelt field
// is reported, as kubectl would.
type parser struct {
	decoder runtime.Decoder
}

func newParser() parser {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1.AddToScheme(scheme))
	return parser{decoder: serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()}
}

// parsed is what a file holds: objects with defaults set, in the file's order, and what is wrong with it.
type parsed struct {
	objects  []runtime.Object
	problems []model.Problem
}

// parse reads all documents of a YAML or JSON file. It returns an error if one of them isn't well-formed, since the
// rest of the file cannot be trusted then; a document of a kind that isn't used is a problem only.
func (p parser) parse(path string, content []byte) (parsed, error) {
	var result parsed
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for number := 1; ; number++ {
		var document runtime.RawExtension
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err == nil {
			err = p.document(path, document.Raw, &result)
		}
		if err != nil {
			return parsed{}, fmt.Errorf("parse document %d: %w", number, err)
		}
	}
}

func (p parser) document(path string, raw []byte, into *parsed) error {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil
	}
	item, kind, err := p.decoder.Decode(raw, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		into.complain("File", types.NamespacedName{Name: path}, "", unused(kind.String()))
		return nil
	case item != nil && runtime.IsStrictDecodingError(err):
		into.complain("File", types.NamespacedName{Name: path}, "", err.Error())
	case err != nil:
		return err
	}
	return p.item(path, item, kind.String(), into)
}

func (p parser) item(path string, item runtime.Object, kind string, into *parsed) error {
	switch item := item.(type) {
	case *corev1.List: // of any kinds
		for _, element := range item.Items {
			if err := p.document(path, element.Raw, into); err != nil {
				return err
			}
		}
		return nil
	case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node, *networkingv1.ServiceCIDR:
		into.add(path, item, kind)
		return nil
	}
	if !meta.IsListType(item) {
		into.complain("File", types.NamespacedName{Name: path}, "", unused(kind))
		return nil
	}
	return meta.EachListItem(item, func(element runtime.Object) error {
		return p.item(path, element, kind, into)
	})
}

func (r *parsed) add(path string, item runtime.Object, kind string) {
	setDefaults(item)
	if item.(metav1.Object).GetName() == "" {
		r.complain("File", types.NamespacedName{Name: path}, "metadata.name", "is missing in an object of kind "+kind)
		return
	}
	r.objects = append(r.objects, item)
}

func (r *parsed) complain(kind string, name types.NamespacedName, field, reason string) {
	r.problems = append(r.problems, model.Problem{Kind: kind, Name: name, Field: field, Reason: reason})
}

func unused(kind string) string {
	return "has an object of kind " + kind +
		", which is not used: only v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node and " +
		"networking.k8s.io/v1 ServiceCIDR are"
}
