package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/snapshot"
)

const (
	// saveEvery is the time between two snapshots. A snapshot at the exit precedes a regular restart, so only a crash
	// or a power failure needs them.
	saveEvery = 5 * time.Minute
	// catchUp is the time after which a watch that continues from a snapshot has delivered the changes since then. The
	// API server sends them at once, and without a mark at their end.
	catchUp = 500 * time.Millisecond
	// answerPatience is the longest wait for an answer of the API server before the objects of a snapshot are served.
	answerPatience = 5 * time.Second
)

// nodesResource is the resource whose list confirms a snapshot.
const nodesResource = "nodes"

// past has the objects of an earlier process, from its snapshot.
//
// The list of this Node is a single object. It confirms the snapshot, because no other cluster has a Node with this
// UID, and because a cluster that was restored from an older backup has a lower resource version.
type past struct {
	// silent is closed when the API server does not answer the first request for the Node. judged is closed after its
	// first answer.
	silent, judged chan struct{}
	failed, judge  sync.Once
	// saved is the time of the snapshot while its objects are served without confirmation, in nanoseconds since 1970;
	// otherwise 0.
	saved atomic.Int64

	// header is nil without a usable snapshot.
	header *snapshot.Header

	mu sync.Mutex
	// failure is the reason why the last attempt to read or write the snapshot failed, or nil.
	failure error
	// lists has the objects until a watch continues from them, by resource.
	lists map[string]*storedList
}

func newPast() *past { return &past{silent: make(chan struct{}), judged: make(chan struct{})} }

// Snapshot returns the time of the snapshot whose objects are served until the API server confirms them, and the
// zero time if there is no such snapshot. err is the reason why the last attempt to read or write a snapshot failed.
func (i *Informers) Snapshot() (saved time.Time, err error) {
	if at := i.past.saved.Load(); at != 0 {
		saved = time.Unix(0, at)
	}
	i.past.mu.Lock()
	defer i.past.mu.Unlock()
	return saved, i.past.failure
}

// note sets the reason why the last attempt to read or write the snapshot failed, or nil. It reports whether the
// reason of the attempt before was another one.
func (p *past) note(failure error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = fmt.Sprint(failure) != fmt.Sprint(p.failure)
	p.failure = failure
	return changed
}

func (i *Informers) setUnconfirmed(saved int64) {
	i.past.saved.Store(saved)
	if i.cfg.Unconfirmed != nil {
		i.cfg.Unconfirmed(saved != 0)
	}
}

// Confirmed returns a channel that is closed when the API server has sent or confirmed all objects.
func (i *Informers) Confirmed() <-chan struct{} { return i.confirmed }

// snapshotPath returns the path of the snapshot. Instances with different service-proxy names have different ones.
func (c *Config) snapshotPath() string {
	name := "objects"
	if c.ServiceProxyName != "" {
		name += "-" + c.ServiceProxyName
	}
	return filepath.Join(c.SnapshotDir, name)
}

// identity includes all settings that select the stored objects, their fields and their annotations.
func (c *Config) identity() snapshot.Identity {
	stored := fmt.Sprintf("%q zones=%t limits=%+v annotations=%q %q", c.ServiceProxyName, c.Zones, c.Limits.OrDefault(),
		model.AnnotationsOf(false), model.AnnotationsOf(true))
	return snapshot.Identity{Cluster: c.Cluster, Node: c.NodeName, Stored: stored}
}

// load reads the snapshot. If it cannot be used, all objects are listed.
func (i *Informers) load(ctx context.Context) {
	p := i.past
	if i.cfg.SnapshotDir == "" {
		return
	}
	lists := map[string]*storedList{}
	for _, f := range i.followers {
		lists[f.resource] = &storedList{}
	}
	path := i.cfg.snapshotPath()
	header, err := snapshot.Read(path, i.cfg.identity(), time.Now(), func(item runtime.Object) error {
		stored, err := i.services.transform(item) // the same function for all kinds
		if err != nil {
			return err
		}
		if list := lists[resourceOf(item)]; list != nil {
			list.Items = append(list.Items, stored.(*object))
		}
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil && len(lists[nodesResource].Items) != 1:
		err = errors.New("the file does not have exactly one Node")
	}
	if err != nil {
		p.note(fmt.Errorf("cannot use the snapshot %s: %w", path, err))
		klog.FromContext(ctx).Info("Cannot use the snapshot; all objects are listed", "file", path, "err", err)
		return
	}
	for resource, list := range lists {
		list.ResourceVersion = header.Versions[resource]
	}
	p.header, p.lists = header, lists
}

func resourceOf(item runtime.Object) string {
	switch item.(type) {
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *corev1.Node:
		return nodesResource
	case *networkingv1.ServiceCIDR:
		return "servicecidrs"
	case *corev1.Pod:
		return podsResource
	}
	return ""
}

// judging returns a function that lists this Node, and decides by the first answer whether the snapshot is confirmed.
func (i *Informers) judging(list listFunc) listFunc {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		answer, err := list.checked(ctx, o)
		if err != nil {
			i.past.failed.Do(func() { close(i.past.silent) })
			return nil, err
		}
		i.past.judge.Do(func() { i.past.decide(ctx, answer.(*corev1.NodeList)) })
		return answer, nil
	}
}

// decide rejects the snapshot unless the answer confirms it.
func (p *past) decide(ctx context.Context, answer *corev1.NodeList) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(p.judged)
	if p.header == nil {
		return
	}
	logger := klog.FromContext(ctx)
	if err := p.differsFrom(answer); err != nil {
		p.lists = nil
		logger.Info("The API server does not confirm the snapshot; all objects are listed", "reason", err)
		return
	}
	logger.Info("The API server has confirmed the snapshot; watching the changes since then", "saved", p.header.Saved)
}

// differsFrom returns the reason why the API server cannot continue from the snapshot.
func (p *past) differsFrom(answer *corev1.NodeList) error {
	node, _ := valueOf[corev1.Node](p.lists[nodesResource].Items[0].(*object))
	if len(answer.Items) != 1 || answer.Items[0].UID != node.UID {
		return errors.New("this Node is another one, or does not exist")
	}
	for resource, version := range p.header.Versions {
		order, err := resourceversion.CompareResourceVersion(version, answer.ResourceVersion)
		if err != nil {
			return err
		}
		if order > 0 {
			return fmt.Errorf("the cluster has resource version %s, and the snapshot has %s of %s: a backup was "+
				"restored",
				answer.ResourceVersion, version, resource)
		}
	}
	return nil
}

// resume returns the list of the snapshot once, after the API server has confirmed it. Otherwise it returns nil, when
// it is time for a list.
func (i *Informers) resume(ctx context.Context, resource string, into *objects) (*storedList, error) {
	p := i.past
	if resource == nodesResource || into.isRead() {
		return nil, nil
	}
	if p.header == nil {
		return nil, i.awaitTurn(ctx)
	}
	select {
	case <-p.judged:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	list := p.lists[resource]
	delete(p.lists, resource)
	p.mu.Unlock()
	switch {
	case list == nil:
		return nil, i.awaitTurn(ctx)
	case list.ResourceVersion == "": // no version was known when the snapshot was written
		return nil, nil
	}
	into.resumed.Store(true)
	return list, nil
}

func (c *Config) serves() bool { return c.Serves != nil && c.Serves() }

// serveUnconfirmed makes the objects of the snapshot available if the API server does not answer, and no rules of an
// earlier process serve: these are newer.
func (i *Informers) serveUnconfirmed(ctx context.Context) {
	p := i.past
	if p.header == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-p.judged:
		return
	case <-p.silent:
	case <-time.After(answerPatience):
	}
	if i.cfg.serves() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.judged:
		return
	default:
	}
	for _, f := range i.followers {
		for _, item := range p.lists[f.resource].Items {
			o := item.(*object)
			f.into.set(o.NamespacedName, o)
		}
	}
	i.setUnconfirmed(p.header.Saved.UnixNano())
	klog.FromContext(ctx).Info("The API server does not answer; serving the Services of the snapshot until it does",
		"saved", p.header.Saved, "services", len(p.lists["services"].Items))
	i.loaded.Do(func() { close(i.synced) })
}

// keepSnapshot writes snapshots until the context ends.
func (i *Informers) keepSnapshot(ctx context.Context) {
	if i.cfg.SnapshotDir == "" {
		return
	}
	for {
		i.save(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(saveEvery):
		}
	}
}

// save writes a snapshot. The objects may be newer than their versions: a watch then delivers some changes again.
func (i *Informers) save(ctx context.Context) {
	node := i.Node()
	if i.cfg.SnapshotDir == "" || node == nil {
		return
	}
	h := &snapshot.Header{
		Format: snapshot.Format, Identity: i.cfg.identity(), Saved: i.link.confirmed(), Versions: map[string]string{},
	}
	for _, f := range i.followers {
		if version := f.LastSyncResourceVersion(); version != "" {
			h.Versions[f.resource] = version
		}
	}
	path := i.cfg.snapshotPath()
	if err := snapshot.Write(path, h, i.encoded); err != nil {
		if i.past.note(fmt.Errorf("cannot write the snapshot %s: %w", path, err)) {
			klog.FromContext(ctx).Error(err, "Cannot write the snapshot", "file", path)
		}
		return
	}
	i.past.note(nil)
	klog.FromContext(ctx).V(2).Info("Wrote the snapshot", "file", path)
	if i.cfg.Saved != nil {
		i.cfg.Saved(h.Saved)
	}
}

// encoded yields all stored objects as API objects with their kinds.
func (i *Informers) encoded(yield func(runtime.Object) bool) {
	for _, f := range i.followers {
		for _, o := range f.into.list() {
			if item := o.encoded(i.serviceProxyName); item != nil && !yield(item) {
				return
			}
		}
	}
}

// encoded returns an API object whose stored form is o, or nil if o has no value.
func (o *object) encoded(serviceProxyName string) runtime.Object {
	switch value := o.value.(type) {
	case *corev1.Service:
		s := *value
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		if serviceProxyName != "" {
			s.Labels = map[string]string{labelServiceProxyName: serviceProxyName}
		}
		return &s
	case *model.Slice:
		s := value.Object(o.service)
		s.TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		if o.service == "" {
			s.Labels = nil
		}
		if o.triggerMicros != 0 {
			s.Annotations = maps.Clone(s.Annotations)
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			at := time.UnixMicro(o.triggerMicros).UTC().Format(time.RFC3339Nano)
			s.Annotations[corev1.EndpointsLastChangeTriggerTime] = at
		}
		return s
	case *corev1.Node:
		n := *value
		n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		return &n
	case *networkingv1.ServiceCIDR:
		c := *value
		c.TypeMeta = metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR"}
		return &c
	case *corev1.Pod:
		p := *value
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		return &p
	}
	return nil
}
