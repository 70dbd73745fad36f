package twin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// serviceCIDR is the API server's own range, which tests do not use: the API server creates the Service kubernetes in it, and
// restores the ServiceCIDR kubernetes if a test deletes it.
const serviceCIDR = "10.200.0.0/16,fd00:10:200::/112"

// API is an etcd and kube-apiserver with exactly the objects that were Set, without validation, allocation or reconciliation. An
// API and its proxies are not safe for concurrent use.
type API struct {
	*cluster.Cluster
	dir string
	// nodeName is the name of the proxies' node.
	nodeName string
	stored   map[string]runtime.Object
	marks    marks
}

// Start starts an API server with its data in a folder, and waits until it serves.
func Start(ctx context.Context, dir, nodeName string) (*API, error) {
	c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), ServiceCIDR: serviceCIDR})
	if err != nil {
		return nil, err
	}
	return &API{Cluster: c, dir: dir, nodeName: nodeName, stored: map[string]runtime.Object{}}, nil
}

// Set replaces the stored objects with the given ones, plus the package's marks. Of two with the same name the first one is
// stored. Unchanged objects are not written again.
func (a *API) Set(ctx context.Context, objects []runtime.Object) error {
	wanted := map[string]runtime.Object{}
	for _, obj := range objects {
		if _, twice := wanted[nameOf(obj)]; !twice {
			wanted[nameOf(obj)] = obj.DeepCopyObject()
		}
	}
	a.marks.advance(a.stored, wanted, a.nodeName)
	// The objects must be stored before the marks.
	if err := a.change(ctx, wanted); err != nil {
		return err
	}
	for _, obj := range a.marks.objects() {
		wanted[nameOf(obj)] = obj
	}
	return a.change(ctx, wanted)
}

// change deletes unwanted objects and stores new and changed ones. The package's own objects stay.
func (a *API) change(ctx context.Context, wanted map[string]runtime.Object) error {
	store := a.Store(ctx)
	for _, name := range slices.Sorted(maps.Keys(a.stored)) {
		if wanted[name] == nil && !ours(name) {
			store.Delete(a.stored[name])
			delete(a.stored, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		obj := wanted[name]
		before := a.stored[name]
		a.identify(obj, before)
		if !reflect.DeepEqual(obj, before) {
			store.Put(obj)
			a.stored[name] = obj
		}
	}
	return store.Flush()
}

// identify sets the fields that the API server sets at creation. All objects have the same age by default.
func (a *API) identify(obj, before runtime.Object) {
	meta := obj.(metav1.Object)
	if meta.GetUID() == "" && before != nil {
		meta.SetUID(before.(metav1.Object).GetUID())
	}
	if meta.GetUID() == "" {
		meta.SetUID(uuid.NewUUID())
	}
	if creation := meta.GetCreationTimestamp(); creation.IsZero() {
		meta.SetCreationTimestamp(metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	meta.SetResourceVersion("")
}

// nameOf returns an object's type, namespace and name.
func nameOf(obj runtime.Object) string {
	meta := obj.(metav1.Object)
	return fmt.Sprintf("%T %s/%s", obj, meta.GetNamespace(), meta.GetName())
}

// node returns this node's object, or nil.
func node(objects map[string]runtime.Object, name string) *corev1.Node {
	obj, _ := objects[nameOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})].(*corev1.Node)
	return obj
}

// cidrs returns the prefixes of all ServiceCIDRs except the package's own.
func cidrs(objects map[string]runtime.Object) (list []string) {
	for name, obj := range objects {
		if cidr, is := obj.(*networkingv1.ServiceCIDR); is && !ours(name) {
			list = append(list, cidr.Spec.CIDRs...)
		}
	}
	slices.Sort(list)
	return list
}

// Settle waits until each of the proxies has programmed all objects. It restarts kube-proxy if kube-proxy would otherwise use
// state from its start, and makes it rewrite everything if it has missed a change: it processes changed ServiceCIDRs with a
// delay, and at its start it may lose the zone of its node, if that arrives before its handler is registered.
func (a *API) Settle(ctx context.Context, proxies ...*Proxy) error {
	for _, p := range proxies {
		if err := p.refresh(ctx); err != nil {
			return err
		}
	}
	for {
		missed, err := a.awaitAll(ctx, proxies)
		if err != nil || !missed {
			return err
		}
		if err := a.resync(ctx, proxies); err != nil {
			return err
		}
	}
}

// enough is the time after which kube-proxy makes no more changes; normally, it takes 100 ms.
const enough = 5 * time.Second

// awaitAll waits until the rules of each proxy match the objects. It returns true if kube-proxy does not reach that state by
// itself.
func (a *API) awaitAll(ctx context.Context, proxies []*Proxy) (missed bool, err error) {
	for _, p := range proxies {
		if p.String() != KubeProxy {
			if err := p.await(ctx, a.marks.complete); err != nil {
				return false, err
			}
			continue
		}
		soon, cancel := context.WithTimeout(ctx, enough)
		err := p.await(soon, a.marks.settled)
		late := soon.Err() != nil && ctx.Err() == nil
		cancel()
		if err != nil && !late {
			return false, err
		}
		listing, err := p.list(ctx)
		if err != nil {
			return false, err
		}
		missed = missed || a.marks.complete(listing) != nil
	}
	return missed, nil
}

// resync makes kube-proxy rewrite everything, by moving its node to another zone. The node moves back later.
func (a *API) resync(ctx context.Context, proxies []*Proxy) error {
	home := node(a.stored, a.nodeName)
	if home == nil {
		return errors.New("write all objects again: there is no Node to move away")
	}
	away := home.DeepCopy()
	away.Labels = map[string]string{corev1.LabelTopologyZone: zoneAway}
	if err := a.move(ctx, away); err != nil {
		return err
	}
	for _, p := range proxies {
		if err := p.await(ctx, a.marks.away); err != nil {
			return err
		}
	}
	return a.move(ctx, home)
}

func (a *API) move(ctx context.Context, node *corev1.Node) error {
	store := a.Store(ctx)
	store.Put(node)
	return store.Flush()
}
