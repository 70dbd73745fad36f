package watch

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Object is an API object in its stored form.
type Object = object

// Kind has the objects of one kind in a [Store], for a source that is not an API server.
type Kind struct {
	Name    string
	objects *objects
}

// Kinds returns the kinds of the objects in the store.
func (s *Store) Kinds() (services, slices, nodes, serviceCIDRs, pods Kind) {
	return Kind{"Service", s.services}, Kind{"EndpointSlice", s.slices},
		Kind{"Node", s.nodes}, Kind{"ServiceCIDR", s.serviceCIDRs}, Kind{"Pod", s.pods}
}

// Encode returns the stored form of a decoded object of any kind.
func (k Kind) Encode(item any) (*Object, error) {
	encoded, err := k.objects.transform(item)
	if err != nil {
		return nil, err
	}
	return encoded.(*Object), nil
}

// Publish replaces all objects of the kind, and marks the names of the objects that differ.
func (k Kind) Publish(wanted map[types.NamespacedName]*Object) {
	k.objects.replace(slices.Collect(maps.Values(wanted)))
}
