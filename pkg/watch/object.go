package watch

import (
	"bytes"
	"fmt"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

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

// key is the object's key in a store.
func (o *object) key() string {
	return cache.MetaObjectToName(o.GetObjectMeta()).String()
}

// message is what the API's types have in common.
type message interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// encode returns the stored form of a stripped object, which names where it came from: original.
func encode(original metav1.Object, stripped message) (*object, error) {
	data, err := stripped.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %T %s/%s: %w", stripped, original.GetNamespace(), original.GetName(), err)
	}
	o := exclude(original)
	o.excluded, o.data = false, data
	return o, nil
}

// exclude returns the stored form of an object that nobody is to see. It is stored nevertheless, since client-go
// wants to know what it has.
func exclude(original metav1.Object) *object {
	return &object{
		NamespacedName: types.NamespacedName{
			Namespace: unique.Make(original.GetNamespace()).Value(),
			Name:      original.GetName(),
		},
		version:  original.GetResourceVersion(),
		excluded: true,
	}
}

func (o *object) decode(into message) {
	if err := into.Unmarshal(o.data); err != nil {
		panic(fmt.Sprintf("decode stored %T %s: %v", into, o.NamespacedName, err)) // it was encoded by this process
	}
	into.SetResourceVersion(o.version)
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
