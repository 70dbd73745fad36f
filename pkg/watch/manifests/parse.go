package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// fileBudget limits the cost of one file of manifests.
type fileBudget struct {
	// documents, objects and reports are the largest numbers of documents to read, of objects to use, and of problems
	// to report one by one.
	documents, objects, reports int
	// object is the largest size of an object as JSON, in bytes. The API server has the same limit for a request. depth
	// is the deepest nesting of Lists. text is the largest size of an error message, in bytes.
	object, depth, text int
}

// largestFile is the largest size of a file, in bytes: enough for 200,000 Services with ten endpoints each.
const largestFile = 256 << 20

// longestName is the limit in bytes of the name and of the namespace of an object. The API server has the same limit.
const longestName = 253

var usualBudget = fileBudget{
	documents: 1_000_000, objects: 1_000_000, reports: 20, object: 3 << 20, depth: 4, text: 500,
}

// parser reads manifests. The decoder is strict: it reports a misspelt field, like kubectl.
type parser struct {
	decoder runtime.Decoder
	fileBudget
}

func newParser() parser {
	codecs := serializer.NewCodecFactory(kubeapi.Scheme(), serializer.EnableStrict)
	return parser{codecs.UniversalDeserializer(), usualBudget}
}

// parsed is the content of a file: its objects in order, with defaults, and its problems.
type parsed struct {
	objects  []runtime.Object
	problems []model.Problem
	// unread is the number of documents and items of Lists that cannot be read.
	unread int
}

// reading is the state of parsing one file.
type reading struct {
	parser
	parsed
	path string
	// number and line are those of the current document. more is the number of problems above the limit, which are not
	// listed in parsed.
	number, line, more int
}

// parse reads all documents of a YAML or JSON file. A document or an item of a List that cannot be read becomes a
// problem.
func (p parser) parse(path string, content []byte) parsed {
	r := &reading{parser: p, path: path}
	content, err := decode(content)
	if err != nil {
		r.number, r.line = 1, 1
		r.unreadable(err)
	}
	for _, d := range split(content) {
		if r.number++; r.number > p.documents {
			r.unreadable(fmt.Errorf("there are more than %d documents", p.documents))
			break
		}
		r.document(d)
	}
	if r.more > 0 {
		r.problems = append(r.problems, model.Problem{
			Kind: "File", Name: types.NamespacedName{Name: path}, Reason: fmt.Sprintf("has %d more problems", r.more),
		})
	}
	return r.parsed
}

func (r *reading) document(d document) {
	r.line = d.line
	values, err := d.values()
	if err == nil {
		r.values(values)
		return
	}
	parts := resplit(d)
	if len(parts) < 2 {
		r.unreadable(err)
		return
	}
	r.complain("", "a line --- is missing or misspelt between two documents")
	for _, part := range parts {
		r.line = part.line
		if values, err := part.values(); err != nil {
			r.unreadable(err)
		} else {
			r.values(values)
		}
	}
}

func (r *reading) values(list []json.RawMessage) {
	for _, value := range list {
		r.value(value, 0)
	}
}

// value reads an object or a List. depth is the number of enclosing Lists.
func (r *reading) value(value json.RawMessage, depth int) {
	if value = bytes.TrimSpace(value); bytes.Equal(value, []byte("null")) {
		return
	}
	var head struct {
		metav1.TypeMeta
		Items []json.RawMessage
	}
	if err := json.Unmarshal(value, &head); err != nil {
		r.unreadable(err)
		return
	}
	element, isList := strings.CutSuffix(head.Kind, "List")
	switch {
	case !isList:
		r.object(value)
	case depth == r.depth:
		r.unreadable(errors.New("too many Lists in Lists"))
	case element != "" && !used[schema.FromAPIVersionAndKind(head.APIVersion, element)]:
		r.complain("", unused(head.GroupVersionKind().String()))
	default:
		for _, item := range head.Items {
			if element != "" {
				item = typed(item, metav1.TypeMeta{APIVersion: head.APIVersion, Kind: element})
			}
			r.value(item, depth+1)
		}
	}
}

// used are the kinds of objects that the source stores.
var used = map[schema.GroupVersionKind]bool{
	corev1.SchemeGroupVersion.WithKind("Service"):            true,
	corev1.SchemeGroupVersion.WithKind("Node"):               true,
	corev1.SchemeGroupVersion.WithKind("Pod"):                true,
	discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"): true,
	networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"):  true,
}

// typed returns an item of a List with the kind and API version of the List's items. It does not change an item that
// has its own, or is no object.
func typed(item json.RawMessage, t metav1.TypeMeta) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(item, &fields) != nil || fields == nil || fields["kind"] != nil || fields["apiVersion"] != nil {
		return item
	}
	head := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q`, t.Kind, t.APIVersion)
	if len(fields) > 0 {
		head = append(head, ',')
	}
	return append(head, bytes.TrimPrefix(bytes.TrimSpace(item), []byte("{"))...)
}

func (r *reading) object(value json.RawMessage) {
	switch {
	case len(value) > r.parser.object:
		r.unreadable(fmt.Errorf("an object has %d bytes, more than %d", len(value), r.parser.object))
		return
	case len(r.objects) >= r.parser.objects:
		r.unreadable(fmt.Errorf("there are more than %d objects", r.parser.objects))
		return
	}
	item, kind, err := r.decoder.Decode(value, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		r.complain("", unused(kind.String()))
		return
	case item != nil && runtime.IsStrictDecodingError(err):
		r.complain("", err.Error())
	case err != nil:
		r.unreadable(err)
		return
	}
	if !used[*kind] {
		r.complain("", unused(kind.String()))
		return
	}
	setDefaults(item)
	switch o := item.(metav1.Object); {
	case o.GetName() == "":
		r.complain("metadata.name", "is missing in an object of kind "+kind.String())
		return
	case len(o.GetName()) > longestName || len(o.GetNamespace()) > longestName:
		r.complain("metadata.name", fmt.Sprintf("has more than %d bytes in an object of kind %s", longestName, kind))
		return
	}
	r.objects = append(r.objects, item)
}

// unreadable reports a document or an item of a List that cannot be read.
func (r *reading) unreadable(err error) {
	r.unread++
	r.complain("", fmt.Sprintf("cannot be read and is left out: %v", err))
}

// complain reports a problem of the current document.
func (r *reading) complain(field, reason string) {
	if len(r.problems) >= r.reports {
		r.more++
		return
	}
	if len(reason) > r.text {
		reason = strings.ToValidUTF8(reason[:r.text], "") + "…"
	}
	reason = fmt.Sprintf("document %d, line %d: %s", r.number, r.line, reason)
	r.problems = append(r.problems, model.Problem{
		Kind: "File", Name: types.NamespacedName{Name: r.path}, Field: field, Reason: reason,
	})
}

func unused(kind string) string {
	return "has an object of kind " + kind +
		", which is not used: only v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node, v1 Pod and " +
		"networking.k8s.io/v1 ServiceCIDR are"
}
