package watch

import (
	"reflect"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// object is an API object in its stored form. An object in the store is immutable.
type object struct {
	types.NamespacedName
	// version is metadata.resourceVersion, which client-go's reflector reads. It is not part of value, so that a new
	// version alone is no change.
	version string
	// service is the name of the Service that an EndpointSlice belongs to, in the same namespace.
	service string
	// value has only the fields that the program reads: a *model.Slice, or a Service, Node, ServiceCIDR or Pod of the
	// API. It is nil for an object that [transformer] excludes.
	value any
	// triggerMicros is the time of the change that led to this state of an EndpointSlice, in microseconds since 1970;
	// 0 if unknown. ipv6 is true for IPv6 endpoints.
	triggerMicros int64
	ipv6          bool
}

// newObject returns the stored form of an object with a value.
func newObject(of metav1.Object, value any) *object {
	return &object{
		NamespacedName: types.NamespacedName{Namespace: unique.Make(of.GetNamespace()).Value(), Name: of.GetName()},
		version:        of.GetResourceVersion(),
		value:          value,
	}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, with which client-go's stores find an object's key and version.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.version}
}

// GetObjectKind implements runtime.Object, for the items of a list.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object { return o }

// ownerName returns the Service of an EndpointSlice. It returns false if the slice is nil or names no Service.
func (o *object) ownerName() (types.NamespacedName, bool) {
	if o == nil || o.service == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.service}, true
}

// same reports whether two states of an object are equal for the proxy. A state is nil if the object does not exist.
func same(a, b *object) bool {
	aSeen, bSeen := a != nil && a.value != nil, b != nil && b.value != nil
	if !aSeen || !bSeen {
		return aSeen == bSeen
	}
	if a.service != b.service || a.triggerMicros != b.triggerMicros {
		return false
	}
	if slice, ok := a.value.(*model.Slice); ok {
		return slice.Equal(b.value.(*model.Slice))
	}
	return reflect.DeepEqual(a.value, b.value)
}
