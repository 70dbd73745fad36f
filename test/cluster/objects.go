package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
)

// Apply creates each object, or replaces the one with its name, in the given order. It also sets the status of a Node and a
// Service, as the kubelet and a load-balancer controller would, and that of a ServiceCIDR only if it is not empty, because the
// API server maintains it. It does not change the given objects: use Client to read allocated fields. It stops at the first
// error. Types other than Namespace, Node, Service, EndpointSlice and ServiceCIDR are errors.
func (c *Cluster) Apply(ctx context.Context, objs ...runtime.Object) error {
	for _, obj := range objs {
		// A concurrent write by the API server's own controllers causes a conflict.
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return c.apply(ctx, obj) })
		if err != nil {
			return fmt.Errorf("apply %s: %w", describe(obj), err)
		}
	}
	return nil
}

func (c *Cluster) apply(ctx context.Context, obj runtime.Object) error {
	switch obj := obj.(type) {
	case *corev1.Namespace:
		_, err := put(ctx, c.client.CoreV1().Namespaces(), obj)
		return err
	case *corev1.Node:
		nodes := c.client.CoreV1().Nodes()
		live, err := put(ctx, nodes, obj)
		if err != nil || equality.Semantic.DeepEqual(live.Status, obj.Status) {
			return err
		}
		live.Status = obj.Status
		_, err = nodes.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	case *corev1.Service:
		services := c.client.CoreV1().Services(namespaceOf(obj))
		live, err := put(ctx, services, obj)
		if err != nil || equality.Semantic.DeepEqual(live.Status, obj.Status) {
			return err
		}
		live.Status = obj.Status
		_, err = services.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	case *discoveryv1.EndpointSlice:
		_, err := put(ctx, c.client.DiscoveryV1().EndpointSlices(namespaceOf(obj)), obj)
		return err
	case *networkingv1.ServiceCIDR:
		ranges := c.client.NetworkingV1().ServiceCIDRs()
		live, err := put(ctx, ranges, obj)
		if err != nil || len(obj.Status.Conditions) == 0 {
			return err
		}
		live.Status = obj.Status
		_, err = ranges.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	}
	return fmt.Errorf("unknown type %T", obj)
}

// Delete deletes each object by its name, in the given order. A missing object is no error. It does not wait for finalizers. The
// types are those of Apply, and it stops at the first error.
func (c *Cluster) Delete(ctx context.Context, objs ...runtime.Object) error {
	for _, obj := range objs {
		if err := c.delete(ctx, obj); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", describe(obj), err)
		}
	}
	return nil
}

func (c *Cluster) delete(ctx context.Context, obj runtime.Object) error {
	var options metav1.DeleteOptions
	switch obj := obj.(type) {
	case *corev1.Namespace:
		return c.client.CoreV1().Namespaces().Delete(ctx, obj.Name, options)
	case *corev1.Node:
		return c.client.CoreV1().Nodes().Delete(ctx, obj.Name, options)
	case *corev1.Service:
		return c.client.CoreV1().Services(namespaceOf(obj)).Delete(ctx, obj.Name, options)
	case *discoveryv1.EndpointSlice:
		return c.client.DiscoveryV1().EndpointSlices(namespaceOf(obj)).Delete(ctx, obj.Name, options)
	case *networkingv1.ServiceCIDR:
		return c.client.NetworkingV1().ServiceCIDRs().Delete(ctx, obj.Name, options)
	}
	return fmt.Errorf("unknown type %T", obj)
}

// writer is the part of a typed client that put needs.
type writer[T any] interface {
	Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
}

// object is a pointer to an API type.
type object interface {
	metav1.Object
	runtime.Object
}

// put creates obj or replaces the object of its name, and returns the stored object. It looks first: the creation of a Service
// whose cluster IP is in use, even by itself, fails as invalid, not as already existing.
func put[T object](ctx context.Context, w writer[T], obj T) (T, error) {
	next := obj.DeepCopyObject().(T)
	live, err := w.Get(ctx, next.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		next.SetResourceVersion("")
		return w.Create(ctx, next, metav1.CreateOptions{})
	}
	if err != nil {
		return live, err
	}
	next.SetResourceVersion(live.GetResourceVersion())
	next.SetUID(live.GetUID())
	return w.Update(ctx, next, metav1.UpdateOptions{})
}

// namespaceOf returns the namespace of obj, "default" if a manifest omits it.
func namespaceOf(obj metav1.Object) string {
	if ns := obj.GetNamespace(); ns != "" {
		return ns
	}
	return metav1.NamespaceDefault
}

func describe(obj runtime.Object) string {
	if named, ok := obj.(metav1.Object); ok {
		return fmt.Sprintf("%T %s/%s", obj, named.GetNamespace(), named.GetName())
	}
	return fmt.Sprintf("%T", obj)
}
