package watch

import (
	"fmt"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is an API object in its stored form: stripped of unused fields, and encoded. As Go structs, a cluster's EndpointSlices
// consist mostly of pointers, padding and unused fields. The encoded form takes a third of the memory, the garbage collector does not
// scan it, and a comparison of bytes detects changes. An object in the store is immutable.
type object struct {
	types.NamespacedName
	// version is metadata.resourceVersion, which client-go's reflector reads. It is not part of data, so that a new version alone is no change.
	// objects.put clears it.
	version string
	// service is the name of the Service that an EndpointSlice belongs to, in the same namespace.
	service string
	// data is the encoded form. The object's name is not part of it.
	data string
	// triggerMicros is the time of the change that led to this state of an EndpointSlice, in microseconds since 1970; 0 if unknown. ipv6 is true for
	// IPv6 endpoints.
	triggerMicros int64
	ipv6          bool
	// excluded is true for an object that [transformer] ignores or cannot read. data is then empty.
	excluded bool
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, with which client-go's stores find an object's key and version.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.version}
}

// message is the interface of all API types used here.
type message interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// encode returns the stored form of a stripped object, with the name and resource version of the original.
func encode(original metav1.Object, stripped message) (*object, error) {
	data, err := stripped.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %T %s: %w", stripped, original.GetName(), err)
	}
	return &object{
		NamespacedName: types.NamespacedName{Namespace: original.GetNamespace(), Name: original.GetName()},
		version:        original.GetResourceVersion(),
		data:           string(data),
	}, nil
}

// Numbers of the fields that are read from the encoded form.
const (
	fieldMetadata  = 1 // of every kind
	fieldEndpoints = 2 // of an EndpointSlice
	fieldPorts     = 3

	fieldName            = 1
	fieldNamespace       = 3
	fieldResourceVersion = 6
	fieldLabels          = 11
	fieldAnnotations     = 12
)

// exclude returns the stored form of an excluded object. It has no data, only the name and the version, which client-go's reflector reads.
func exclude(metadata []byte) *object {
	o := identify(metadata)
	o.excluded = true
	return o
}

// identify returns an object that has only the name and the version.
func identify(metadata []byte) *object {
	o := &object{}
	f := fieldReader[[]byte]{rest: metadata}
	for f.next() {
		switch f.number {
		case fieldName:
			o.Name = string(f.content)
		case fieldNamespace:
			o.Namespace = unique.Make(string(f.content)).Value()
		case fieldResourceVersion:
			o.version = string(f.content)
		}
	}
	return o
}

// newObject returns the stored form of an encoded object. It strips the bytes without decoding the object: decoding and encoding
// would take most of the time of a change.
func newObject(metadata []byte, keep []kept, data []byte) (*object, error) {
	o := identify(metadata)
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	stripped, err := strip((*buffer)[:0], data, keep)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", o.NamespacedName, err)
	}
	*buffer = stripped
	o.data = string(stripped)
	return o, nil
}

// buffers hold stripped objects while their length is unknown.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// GetObjectKind implements runtime.Object, for a decoder that returns stored forms.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object { return o }

// decode decodes a stored object. It fails if the API server sent an invalid field. strip does not detect every invalid field, because
// it copies most fields without reading them.
func (o *object) decode(into message) (err error) {
	switch into := into.(type) {
	case *corev1.Service:
		err = DecodeService(o.data, into)
	case *discoveryv1.EndpointSlice:
		err = DecodeSlice(o.data, into)
	default:
		err = into.Unmarshal([]byte(o.data))
	}
	if err != nil {
		return err
	}
	into.SetNamespace(o.Namespace)
	into.SetName(o.Name)
	into.SetResourceVersion(o.version)
	return nil
}

// ownerName returns the Service of an EndpointSlice. It returns false if the slice is nil or names no Service.
func (o *object) ownerName() (types.NamespacedName, bool) {
	if o == nil || o.service == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.service}, true
}

// same reports whether two states of an object are equal for the proxy. A state is nil if the object does not exist.
func same(a, b *object) bool {
	aSeen, bSeen := a != nil && !a.excluded, b != nil && !b.excluded
	if !aSeen || !bSeen {
		return aSeen == bSeen
	}
	return a.service == b.service && a.triggerMicros == b.triggerMicros && a.data == b.data
}
