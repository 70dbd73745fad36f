package watch

import (
	"bytes"
	"fmt"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// object is an API object as it is stored: stripped of what nobody reads, and encoded. As Go structs, a cluster's
// EndpointSlices are more pointers, padding and unused fields than content; encoded they take a third of the memory,
// the garbage collector has nothing to scan in them, and whether something changed is a comparison of bytes.
// It is immutable, so two goroutines may hold it.
type object struct {
	types.NamespacedName
	version string // metadata.resourceVersion; not part of data, so that a new one alone is no change
	// service is the name of the Service that an EndpointSlice belongs to, in the same namespace.
	service string
	// trigger is when the change that led to this state of an EndpointSlice happened; zero where it isn't known.
	trigger track.Trigger
	// excluded is set where a label selector of the API server's would have kept the object out; data is nil then.
	excluded bool
	data     []byte
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, by which client-go's stores find an object's key and version.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.version}
}

// message is what the API's types have in common.
type message interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// encode returns the stored form of an object that has been stripped already; original has its resource version.
func encode(original metav1.Object, stripped message) (*object, error) {
	data, err := stripped.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %T %s: %w", stripped, original.GetName(), err)
	}
	return &object{
		NamespacedName: types.NamespacedName{Namespace: original.GetNamespace(), Name: original.GetName()},
		version:        original.GetResourceVersion(),
		data:           data,
	}, nil
}

// The fields of objects' metadata that are read from the encoded form.
const (
	fieldMetadata  = 1 // of every kind
	fieldEndpoints = 2 // of an EndpointSlice

	fieldName            = 1
	fieldNamespace       = 3
	fieldResourceVersion = 6
	fieldLabels          = 11
	fieldAnnotations     = 12
)

// exclude returns the stored form of an object that nobody is to see. It is stored nevertheless, since client-go
// wants to know what it has.
func exclude(metadata []byte) *object {
	o := &object{excluded: true}
	for f, err := range fieldsOf(metadata) {
		if err != nil {
			break
		}
		switch f.number {
		case fieldName:
			o.Name = string(f.content())
		case fieldNamespace:
			o.Namespace = unique.Make(string(f.content())).Value()
		case fieldResourceVersion:
			o.version = string(f.content())
		}
	}
	return o
}

// stored returns the stored form of an encoded object. Nothing is decoded and encoded again: that would take most of the
// time of a change.
func stored(metadata []byte, keep []kept, data []byte) (*object, error) {
	o := exclude(metadata)
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	stripped, err := strip((*buffer)[:0], data, keep)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", o.NamespacedName, err)
	}
	*buffer = stripped
	o.excluded, o.data = false, bytes.Clone(stripped)
	return o, nil
}

// buffers are for what is being stripped: its length isn't known beforehand.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// GetObjectKind and DeepCopyObject implement runtime.Object, for a decoder that stores what it reads.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object { return o }

// decode fails where the API server has sent what isn't an object of the kind: only the fields that are stored have been looked for.
func (o *object) decode(into message) error {
	if err := into.Unmarshal(o.data); err != nil {
		return err
	}
	into.SetResourceVersion(o.version)
	return nil
}

// ownerName returns the Service that an EndpointSlice belongs to, if the slice exists and says so.
func (o *object) ownerName() (types.NamespacedName, bool) {
	if o == nil || o.service == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.service}, true
}

// same reports whether two states of an object, nil where it doesn't exist, look the same to the proxy.
func same(a, b *object) bool {
	aSeen, bSeen := a != nil && !a.excluded, b != nil && !b.excluded
	if !aSeen || !bSeen {
		return aSeen == bSeen
	}
	return a.service == b.service && a.trigger.At.Equal(b.trigger.At) && bytes.Equal(a.data, b.data)
}
