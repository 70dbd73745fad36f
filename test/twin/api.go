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

// serviceCIDR is the API server's own range, away from all that tests use: it makes the Service kubernetes there, and makes
// the ServiceCIDR kubernetes anew where a test does without.
const serviceCIDR = "10.200.0.0/16,fd00:10:200::/112"

// API is an etcd and kube-apiserver whose objects are just those that were Set: whatever they say, nobody validates them,
// allocates for them or reconciles them. An API and its proxies are for one goroutine.
type API struct {
	*cluster.Cluster
	dir string
	// nodeName is the node on which the proxies believe to be.
	nodeName string
	stored   map[string]runtime.Object
	marks    marks
}

// Start starts an API server in a folder, and waits until it serves.
func Start(ctx context.Context, dir, nodeName string) (*API, error) {
	c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), ServiceCIDR: serviceCIDR})
	if err != nil {
		return nil, err
	}
	return &API{Cluster: c, dir: dir, nodeName: nodeName, stored: map[string]runtime.Object{}}, nil
}

// Set makes the stored objects exactly those given, save for what the package adds to see them settle. Of two with
// the same name the first counts. Objects that stay as they were are not written again.
func (a *API) Set(ctx context.Context, objects []runtime.Object) error {
	wanted := map[string]runtime.Object{}
	for _, obj := range objects {
		if _, twice := wanted[nameOf(obj)]; !twice {
			wanted[nameOf(obj)] = obj.DeepCopyObject()
		}
	}
	a.marks.advance(a.stored, wanted, a.nodeName)
	// What the marks show has to be there before them.
	if err := a.change(ctx, wanted); err != nil {
		return err
	}
	for _, obj := range a.marks.objects() {
		wanted[nameOf(obj)] = obj
	}
	return a.change(ctx, wanted)
}

// change deletes what isn't wanted and stores what is and isn't there like that; the package's own objects stay.
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

// identify gives an object what the API server would when it is created. All are equally old, unless they say otherwise.
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

// nameOf is an object's type, namespace and name.
func nameOf(obj runtime.Object) string {
	meta := obj.(metav1.Object)
	return fmt.Sprintf("%T %s/%s", obj, meta.GetNamespace(), meta.GetName())
}

// node returns this node's object, or nil.
func node(objects map[string]runtime.Object, name string) *corev1.Node {
	obj, _ := objects[nameOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})].(*corev1.Node)
	return obj
}

// cidrs lists the prefixes of all ServiceCIDRs but the package's own.
func cidrs(objects map[string]runtime.Object) (list []string) {
	for name, obj := range objects {
		if cidr, is := obj.(*networkingv1.ServiceCIDR); is && !ours(name) {
			list = append(list, cidr.Spec.CIDRs...)
		}
	}
	slices.Sort(list)
	return list
}

// Settle waits until each of the proxies has programmed all that was Set. It starts kube-proxy anew where that would otherwise
// go by what it read when it started, and has it write everything anew where it has missed something: it takes up changed
// ServiceCIDRs at some time only, and when it starts, it may lose the zone of its node, which comes before the handler is
// there that it is for.
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

// enough is the time after which kube-proxy has taken up what it will; normally, it takes 100 ms.
const enough = 5 * time.Second

// awaitAll waits until the rules of each proxy are those for the objects. It returns true where kube-proxy doesn't get there
// by itself.
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

// resync makes kube-proxy write everything anew, as it does when its node moves to another zone. The node moves back later.
func (a *API) resync(ctx context.Context, proxies []*Proxy) error {
	home := node(a.stored, a.nodeName)
	if home == nil {
		return errors.New("have everything written anew: there is no Node to move away")
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
