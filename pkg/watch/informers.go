package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Informers is the source that reads from the API server. It needs the permissions to list and watch services,
// endpointslices, servicecidrs and nodes (ClusterRole system:node-proxier has them).
type Informers struct {
	Store
	services, slices, node, serviceCIDRs informer
	// noServiceCIDRs is closed when the API server has refused to give them for the first time.
	noServiceCIDRs chan struct{}
	synced         chan struct{}
}

// informer is an informer and the handler that it feeds.
type informer struct {
	cache.SharedIndexInformer
	handled cache.DoneChecker
}

// NewInformers returns a source that has read nothing yet.
func NewInformers(cfg Config) (*Informers, error) {
	mark := marker{nodeName: cfg.NodeName, tracker: cfg.Tracker, report: cfg.report()}
	transform := transformer{report: cfg.report()}.transform
	var failed error
	wire := func(inf cache.SharedIndexInformer, changed func(before, after *object)) informer {
		wired, err := wireInformer(inf, transform, changed)
		if err != nil && failed == nil {
			failed = err
		}
		return wired
	}
	i := &Informers{synced: make(chan struct{}), noServiceCIDRs: make(chan struct{})}
	i.services = wire(coreinformers.NewFilteredServiceInformer(
		cfg.Client, metav1.NamespaceAll, cfg.Resync, nil, selectServices), mark.service)
	i.slices = wire(discoveryinformers.NewFilteredEndpointSliceInformer(
		cfg.Client, metav1.NamespaceAll, cfg.Resync, sliceIndexers(), selectSlices), mark.slice)
	i.node = wire(coreinformers.NewFilteredNodeInformer(
		cfg.Client, cfg.Resync, nil, selectNode(cfg.NodeName)), mark.node)
	i.serviceCIDRs = wire(networkinginformers.NewServiceCIDRInformer(
		cfg.Client, cfg.Resync, nil), mark.serviceCIDR)
	if failed != nil {
		return nil, fmt.Errorf("set up informers: %w", failed)
	}
	for _, set := range []struct {
		informer
		resource string
		failed   cache.WatchErrorHandlerWithContext
	}{
		{i.services, "services", cache.DefaultWatchErrorHandler},
		{i.slices, "endpointslices", cache.DefaultWatchErrorHandler},
		{i.node, "nodes", cache.DefaultWatchErrorHandler},
		{i.serviceCIDRs, "servicecidrs", tolerateError(i.noServiceCIDRs)},
	} {
		if err := set.SetWatchErrorHandlerWithContext(cfg.counting(set.resource, set.failed)); err != nil {
			return nil, fmt.Errorf("set up informers: %w", err)
		}
	}
	i.Store = Store{
		nodeName:     cfg.NodeName,
		services:     i.services.GetIndexer(),
		slices:       i.slices.GetIndexer(),
		nodes:        i.node.GetIndexer(),
		serviceCIDRs: i.serviceCIDRs.GetIndexer(),
	}
	return i, nil
}

func wireInformer(
	inf cache.SharedIndexInformer, transform cache.TransformFunc, changed func(before, after *object),
) (informer, error) {
	if err := inf.SetTransform(transform); err != nil {
		return informer{}, err
	}
	registration, err := inf.AddEventHandler(handler(changed))
	if err != nil {
		return informer{}, err
	}
	return informer{SharedIndexInformer: inf, handled: registration.HasSyncedChecker()}, nil
}

// Run feeds the tracker until the context ends, and returns nil then. It must be called once.
func (i *Informers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, inf := range []informer{i.services, i.slices, i.node, i.serviceCIDRs} {
		running.Go(func() { inf.RunWithContext(ctx) })
	}
	if cache.WaitFor(ctx, "", i.services.handled, i.slices.handled, i.node.handled) {
		// A restart would otherwise find the kernel to hold more than it knows of yet, and write everything anew.
		select {
		case <-i.serviceCIDRs.handled.Done():
		case <-i.noServiceCIDRs:
		case <-ctx.Done():
		}
		klog.FromContext(ctx).V(1).Info("Received all Services, EndpointSlices and the Node from the API server")
		close(i.synced)
	}
	<-ctx.Done()
	return nil
}

// Synced returns a channel that is closed when all Services and EndpointSlices that exist have been read and marked,
// and the Node has been looked for. It waits for the ServiceCIDRs too unless the API server refuses them: older ones don't
// have them.
func (i *Informers) Synced() <-chan struct{} {
	return i.synced
}

func selectServices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + labelServiceProxyName
	options.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
}

func selectSlices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + labelHeadless
}

func selectNode(name string) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// tolerateError logs the first failure for the operator, and closes failed. The retries, which go on with a growing interval, and
// watches that merely ended are for developers.
func tolerateError(failed chan<- struct{}) cache.WatchErrorHandlerWithContext {
	var told atomic.Bool
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		logger := klog.FromContext(ctx)
		if isEnd(err) || told.Swap(true) {
			logger.V(4).Info("Stopped watching ServiceCIDRs; trying again", "err", err)
			return
		}
		close(failed)
		logger.Info("Cannot watch ServiceCIDRs; going on without them and trying again", "err", err)
	}
}

// counting returns a handler that tells of failures before it does what another one does.
func (c *Config) counting(resource string, then cache.WatchErrorHandlerWithContext) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if c.Failed != nil && !isEnd(err) {
			c.Failed(resource)
		}
		then(ctx, r, err)
	}
}

func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
