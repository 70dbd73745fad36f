package watch

import (
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// objects holds all API objects of one kind in their stored form, by name. A reflector of client-go updates it, and
// calls changed from the same goroutine. An informer would pass each change through three queues to three other
// goroutines, and each of them would cost the wake-up of a thread. All methods may be called from any goroutine, but
// only one goroutine at a time may change objects.
type objects struct {
	transform cache.TransformFunc
	// changed is called after an object was set or removed, with the states before and after. The states may be equal.
	// A state is nil if the object does not exist.
	changed func(before, after *object)
	// read is closed when all existing objects have been stored and passed to changed for the first time.
	read chan struct{}
	once sync.Once
	// resumed is true while a watch continues from a snapshot, or is about to.
	resumed atomic.Bool

	mu     sync.RWMutex
	byName map[types.NamespacedName]*object
	// byService holds the EndpointSlices of each Service. It is empty for other kinds.
	byService map[types.NamespacedName]*sliceList
}

// sliceList has the EndpointSlices of a Service, in order of their names.
type sliceList struct {
	list []*model.Slice
	// read is true if the list was returned. Then it never changes: the next change copies it. So a list of many slices
	// that arrive one after the other is not copied for each of them.
	read atomic.Bool
}

func newObjects(transform cache.TransformFunc, changed func(before, after *object)) *objects {
	return &objects{
		transform: transform, changed: changed, read: make(chan struct{}),
		byName: map[types.NamespacedName]*object{}, byService: map[types.NamespacedName]*sliceList{},
	}
}

// get returns nil if there is no object of that name.
func (s *objects) get(name types.NamespacedName) *object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

// list returns all objects, in no order.
func (s *objects) list() []*object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]*object, 0, len(s.byName))
	for _, o := range s.byName {
		list = append(list, o)
	}
	return list
}

// of returns the EndpointSlices of a Service, in order of their names.
func (s *objects) of(service types.NamespacedName) []*model.Slice {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.byService[service]
	if l == nil {
		return nil
	}
	l.read.Store(true)
	return l.list
}

// place returns the list of a Service's EndpointSlices, for a change, and the index of a slice. The caller holds mu.
func (s *objects) place(service types.NamespacedName, slice *model.Slice) (l *sliceList, at int) {
	l = s.byService[service]
	if l == nil {
		l = &sliceList{}
		s.byService[service] = l
	}
	if l.read.Swap(false) {
		l.list = slices.Clone(l.list)
	}
	at, _ = slices.BinarySearchFunc(l.list, slice, func(a, b *model.Slice) int {
		return model.CompareNames(a.Name, b.Name)
	})
	return l, at
}

// set stores an object, or removes it if after is nil, and calls changed.
func (s *objects) set(name types.NamespacedName, after *object) {
	s.mu.Lock()
	before := s.byName[name]
	if owner, owned := before.ownerName(); owned {
		l, at := s.place(owner, before.value.(*model.Slice))
		if l.list = slices.Delete(l.list, at, at+1); len(l.list) == 0 {
			delete(s.byService, owner)
		}
	}
	if s.byName[name] = after; after == nil {
		delete(s.byName, name)
	}
	if owner, owned := after.ownerName(); owned {
		slice := after.value.(*model.Slice)
		l, at := s.place(owner, slice)
		l.list = slices.Insert(l.list, at, slice)
	}
	s.mu.Unlock()
	if before != nil || after != nil {
		s.changed(before, after)
	}
}

// replace stores the wanted objects that are not stored yet, and removes all other objects.
func (s *objects) replace(wanted map[types.NamespacedName]*object) {
	for name, o := range wanted {
		if s.get(name) != o {
			s.set(name, o)
		}
	}
	for _, o := range s.list() {
		if wanted[o.NamespacedName] == nil {
			s.set(o.NamespacedName, nil)
		}
	}
}

// Transformer implements cache.TransformingStore. The reflector calls it to convert each object of a list to the
// stored form.
func (s *objects) Transformer() cache.TransformFunc { return s.transform }

// Add implements cache.ReflectorStore.
func (s *objects) Add(item any) error {
	stored, err := s.transform(item)
	if err != nil {
		return err
	}
	o := stored.(*object)
	s.set(o.NamespacedName, o)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *objects) Update(item any) error { return s.Add(item) }

// Delete implements cache.ReflectorStore.
func (s *objects) Delete(item any) error {
	o, err := meta.Accessor(item) // in the stored form or decoded
	if err != nil {
		return err
	}
	s.set(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}, nil)
	return nil
}

// Replace implements cache.ReflectorStore. It removes objects that are not in the list, because they were deleted
// while no watch ran.
func (s *objects) Replace(list []any, _ string) error {
	all := make(map[types.NamespacedName]*object, len(list))
	for _, item := range list {
		stored, err := s.transform(item)
		if err != nil {
			return err
		}
		o := stored.(*object)
		all[o.NamespacedName] = o
	}
	s.replace(all)
	if !s.resumed.Load() {
		s.setRead()
	}
	return nil
}

func (s *objects) setRead() { s.once.Do(func() { close(s.read) }) }

func (s *objects) isRead() bool {
	select {
	case <-s.read:
		return true
	default:
		return false
	}
}

// confirmLater completes the first read from a snapshot, unless the watch that continues from there ends before.
func (s *objects) confirmLater() {
	if s.resumed.Load() {
		time.AfterFunc(catchUp, func() {
			if s.resumed.Load() {
				s.setRead()
			}
		})
	}
}

// Resync implements cache.ReflectorStore. It does nothing, because changed has already received all stored objects.
func (s *objects) Resync() error { return nil }

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
