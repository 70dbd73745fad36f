package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// Informers is the source that reads from the API server. It needs permission to list and watch services,
// endpointslices, servicecidrs and nodes (ClusterRole system:node-proxier). With a service-proxy name, it does not read
// servicecidrs. Only for host ports, it reads the pods of this node.
type Informers struct {
	*Store
	cfg       Config
	followers []follower
	link      link
	clock     endingClock
	past      *past
	turn      turn
	// optional are the kinds of objects without which the program serves Services, too.
	optional []optional
	// synced is closed when objects can be served, and confirmed when the API server has sent or confirmed them.
	synced, confirmed chan struct{}
	loaded            sync.Once
}

// NewInformers returns a source without objects. Run reads them.
func NewInformers(cfg Config) (*Informers, error) {
	i := &Informers{
		Store: NewStore(cfg), cfg: cfg, clock: endingClock{ended: make(chan struct{})}, past: newPast(),
		synced: make(chan struct{}), confirmed: make(chan struct{}),
	}
	t := cfg.transformer()
	services := access(cfg.Client.Services(metav1.NamespaceAll), selectServices(cfg.ServiceProxyName))
	services.list = lister(cfg.Client.Services(metav1.NamespaceAll),
		converting("Service", t.service, t.report), services.list)
	slices := access(cfg.Client.EndpointSlices(metav1.NamespaceAll), selectSlices)
	slices.list = lister(cfg.Client.EndpointSlices(metav1.NamespaceAll),
		converting("EndpointSlice", t.slice, t.report), slices.list)
	i.follow(cfg, services, &corev1.Service{}, i.services, "services", cache.DefaultWatchErrorHandler)
	i.follow(cfg, slices, &discoveryv1.EndpointSlice{}, i.slices, "endpointslices", cache.DefaultWatchErrorHandler)
	nodes := access(cfg.Client.Nodes, selectNode(cfg.NodeName))
	nodes.list = i.judging(nodes.list)
	i.follow(cfg, nodes, &corev1.Node{}, i.nodes, nodesResource, cache.DefaultWatchErrorHandler)
	if cfg.ServiceProxyName == "" {
		i.followIfPermitted(cfg, access(cfg.Client.ServiceCIDRs, func(*metav1.ListOptions) {}),
			&networkingv1.ServiceCIDR{}, i.serviceCIDRs, "servicecidrs")
	}
	if cfg.HostPorts {
		i.followIfPermitted(cfg, access(cfg.Client.Pods, selectPods(cfg.NodeName)), &corev1.Pod{}, i.pods, podsResource)
	}
	return i, nil
}

// optional is a kind of objects without which the program serves Services, too.
type optional struct {
	*objects
	resource string
	// refused is closed when the API server first refuses access.
	refused chan struct{}
}

// followIfPermitted adds a follower for objects of an optional kind.
func (i *Informers) followIfPermitted(cfg Config, from resource, kind any, into *objects, name string) {
	o := optional{into, name, make(chan struct{})}
	i.optional = append(i.optional, o)
	i.follow(cfg, from, kind, into, name, tolerateError(o))
}

// follow adds a follower for objects of one kind. Run starts it.
func (i *Informers) follow(
	cfg Config, from resource, kind any, into *objects, name string, failed cache.WatchErrorHandlerWithContext,
) {
	watched := new(bool)
	lists := plainLists{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			earlier, err := i.resume(ctx, name, into)
			if earlier != nil {
				return earlier, nil
			}
			if err != nil {
				i.link.record(ctx, err)
				return nil, err
			}
			from.restrict(&o)
			if o.Limit = 0; o.ResourceVersion == anyVersion {
				o.ResourceVersion = "" // the latest one; the API server answers from its cache
			}
			list, err = from.list.checked(ctx, o)
			i.link.record(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			from.restrict(&o)
			w, err := from.watch(ctx, o)
			i.link.record(ctx, err)
			if err == nil {
				*watched = true
				cfg.reportSuccess(name)
				into.confirmLater()
			}
			if isSilent(err) {
				cfg.reportFailure(name, err)
			}
			return w, err
		},
	}}
	between := pauses()
	// No expected type: objects in stored form have the same Go type for all kinds.
	reflector := cache.NewReflectorWithOptions(lists, nil, into, cache.ReflectorOptions{
		Name: name, TypeDescription: fmt.Sprintf("%T", kind), Backoff: &between, Clock: i.clock,
	})
	i.followers = append(i.followers, follower{reflector, watched, cfg.reporting(name, failed), name, into})
}

// plainLists lists and watches objects. The reflector uses lists, and no watches that begin with a list: a list takes
// about half of the bytes, and less of the API server's processor time (docs/decisions/0005-speed.md).
type plainLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// anyVersion is the resource version with which a reflector accepts old objects.
const anyVersion = "0"

// resource gives access to objects of one kind in the API server.
type resource struct {
	list  listFunc
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// restrict sets the selectors of a request.
	restrict func(*metav1.ListOptions)
}

type listFunc func(context.Context, metav1.ListOptions) (runtime.Object, error)

func access[List runtime.Object](client kubeapi.Reader[List], restrict func(*metav1.ListOptions)) resource {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) }
	return resource{list, client.Watch, restrict}
}

// checked lists objects. A list without a resource version is an error, because no API server sends it: client-go
// decodes any JSON object as an empty list.
func (list listFunc) checked(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	all, err := list(ctx, o)
	if err != nil {
		return nil, err
	}
	of, err := meta.ListAccessor(all)
	if err != nil {
		return nil, err
	}
	if of.GetResourceVersion() == "" {
		return nil, errors.New("the answer is not from an API server: it has no resource version")
	}
	return all, nil
}

// follower keeps [objects] up to date with the API server.
type follower struct {
	*cache.Reflector
	// watched is true after the API server has accepted a watch.
	watched *bool
	failed  cache.WatchErrorHandlerWithContext
	// resource is the resource that it follows into the store.
	resource string
	into     *objects
}

// run lists and watches until the context ends. The pauses between retries grow, see [pauses]. If there was a watch,
// and the attempt lasted longer than the longest pause, the next pause is the shortest again.
func (f follower) run(ctx context.Context) {
	for next := pauses(); ctx.Err() == nil; {
		start := time.Now()
		*f.watched = false
		if err := f.ListAndWatchWithContext(ctx); err != nil {
			f.failed(ctx, f.Reflector, err)
		}
		f.into.resumed.Store(false)
		if *f.watched && time.Since(start) > next.Cap {
			next = pauses()
		}
		select {
		case <-ctx.Done():
		case <-time.After(next.Step()):
		}
	}
}

// Run reads and watches all objects and marks changes until the context ends. It always returns nil. Call it once.
func (i *Informers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	context.AfterFunc(ctx, func() { close(i.clock.ended) })
	i.load(ctx)
	for _, f := range i.followers {
		running.Go(func() { f.run(ctx) })
	}
	running.Go(func() { i.serveUnconfirmed(ctx) })
	if !i.awaitAll(ctx) {
		return nil
	}
	klog.FromContext(ctx).V(1).Info("Received all Services, EndpointSlices and the Node from the API server")
	i.setUnconfirmed(0)
	close(i.confirmed)
	i.loaded.Do(func() { close(i.synced) })
	i.keepSnapshot(ctx)
	<-ctx.Done()
	running.Wait()
	i.save(ctx)
	return nil
}

// awaitAll waits until all kinds of objects have been read. It returns false if the context ends first.
func (i *Informers) awaitAll(ctx context.Context) bool {
	for _, o := range []*objects{i.services, i.slices, i.nodes} {
		select {
		case <-o.read:
		case <-ctx.Done():
			return false
		}
	}
	// After a restart, a plan without these objects would differ from the kernel's tables. The first sync would rewrite
	// the tables and remove the ServiceCIDRs and host ports.
	late, end := context.WithTimeout(ctx, optionalPatience)
	defer end()
	for _, o := range i.optional {
		select {
		case <-o.read:
		case <-o.refused:
		case <-late.Done():
			klog.FromContext(ctx).Info("Continuing without objects that cannot be read yet", "resource", o.resource,
				"waited", optionalPatience)
		}
	}
	return ctx.Err() == nil
}

// optionalPatience is the longest wait for optional objects after all Services were read, if the API server does not
// refuse them.
const optionalPatience = 10 * time.Second

// Loaded returns a channel that is closed when all Services and EndpointSlices, and the Node if it exists, have been
// read and marked. The source also waits for ServiceCIDRs, up to a time limit, unless the API server refuses access to
// them. Older API servers do not have ServiceCIDRs.
func (i *Informers) Loaded() <-chan struct{} {
	return i.synced
}

func selectServices(proxyName string) func(*metav1.ListOptions) {
	label := "!" + labelServiceProxyName
	if proxyName != "" {
		label = labelServiceProxyName + "=" + proxyName
	}
	return func(options *metav1.ListOptions) {
		options.LabelSelector = label
		options.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	}
}

// selectSlices selects the EndpointSlices of all Services but headless ones. The labels of a slice do not show the
// proxy of its Service. A controller copies the Service's labels some time later, and no controller copies them to
// EndpointSlices of Services without a selector.
func selectSlices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + labelHeadless
}

func selectNode(name string) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// podsResource is the resource whose objects have the host ports.
const podsResource = "pods"

func selectPods(node string) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
}

// tolerateError logs the first refusal at the default level and records it. It logs all other errors and regular ends
// of watches at a debug level. A temporary failure is not a refusal: the objects may exist.
func tolerateError(of optional) cache.WatchErrorHandlerWithContext {
	var reported atomic.Bool
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		logger := klog.FromContext(ctx)
		if !isRefusal(err) || reported.Swap(true) {
			logger.V(4).Info("Stopped watching optional objects, will retry", "resource", of.resource, "err", err)
			return
		}
		close(of.refused)
		logger.Info("Cannot watch objects; continuing without them, will retry", "resource", of.resource, "err", err)
	}
}

// isRefusal reports whether the API server lacks a resource, or does not permit this client to read it.
func isRefusal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}

// reporting returns a handler that calls Failed for an error, except the regular end of a watch, and then another
// handler. link logs refused connections.
func (c *Config) reporting(
	resource string, then cache.WatchErrorHandlerWithContext,
) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if !isEnd(err) {
			c.reportFailure(resource, err)
		}
		if !utilnet.IsConnectionRefused(err) {
			then(ctx, r, err)
		}
	}
}

func (c *Config) reportFailure(resource string, err error) {
	if c.Failed != nil {
		c.Failed(resource, err)
	}
}

func (c *Config) reportSuccess(resource string) {
	if c.Succeeded != nil {
		c.Succeeded(resource)
	}
}

// isEnd reports whether an error is a regular end of a watch.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
