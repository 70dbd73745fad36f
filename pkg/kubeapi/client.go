// Package kubeapi makes clients for the kinds of API objects that the program uses.
//
// client-go's Clientset knows the types of all API groups. The linker cannot remove these types, so each node would
// keep megabytes of them in memory (docs/decisions/0005-speed.md).
//
// In: the connection to an API server.
// Out: typed clients.
// Never: stores an object, retries.
package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Reader lists and watches the objects of one kind.
type Reader[List runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (List, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Writer creates and patches objects of one kind.
type Writer[Object runtime.Object] interface {
	Create(context.Context, Object, metav1.CreateOptions) (Object, error)
	Patch(
		ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions,
		subresources ...string,
	) (Object, error)
}

// Client has a client for each kind. A namespace is a name, or empty for all namespaces.
type Client struct {
	Services       func(namespace string) Reader[*corev1.ServiceList]
	EndpointSlices func(namespace string) Reader[*discoveryv1.EndpointSliceList]
	Nodes          interface {
		Reader[*corev1.NodeList]
		Writer[*corev1.Node]
	}
	ServiceCIDRs Reader[*networkingv1.ServiceCIDRList]
	Pods         Reader[*corev1.PodList]
	Events       func(namespace string) Writer[*eventsv1.Event]
	Reviews      Writer[*authenticationv1.SelfSubjectReview]
	// REST sends requests that are not about one of these kinds.
	REST rest.Interface
}

// encoding returns an encoding of the kinds of [Client].
func encoding() runtime.NegotiatedSerializer {
	scheme := Scheme()
	return rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
}

// Scheme returns a new scheme of the kinds of [Client]. With all kinds of their groups, the program would be larger.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for version, list := range kinds {
		s.AddKnownTypes(version, list...)
		metav1.AddToGroupVersion(s, version)
	}
	return s
}

// kinds are the kinds of [Client] by group and version.
var kinds = map[schema.GroupVersion][]runtime.Object{
	corev1.SchemeGroupVersion: {&corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{},
		&corev1.Pod{}, &corev1.PodList{}},
	discoveryv1.SchemeGroupVersion:      {&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}},
	networkingv1.SchemeGroupVersion:     {&networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{}},
	eventsv1.SchemeGroupVersion:         {&eventsv1.Event{}},
	authenticationv1.SchemeGroupVersion: {&authenticationv1.SelfSubjectReview{}},
}

// Accepted returns the media types that the program accepts: the given one, and JSON for resources that lack it. The
// parameter asks the API server to leave out metadata.managedFields, which can be more than half of an object and which
// the program does not read (KEP-5958). API servers that do not know the parameter ignore it.
func Accepted(contentType string) string {
	const dropped = ";drop=metadata.managedFields"
	return contentType + dropped + ",application/json" + dropped
}

// New returns a client of an API server. It sends no request. The clients of all kinds share the connection's limit of
// requests.
func New(connection *rest.Config) (*Client, error) {
	c := rest.CopyConfig(connection)
	if c.RateLimiter == nil && c.QPS > 0 {
		if c.Burst <= 0 {
			return nil, errors.New("a limit of requests per second requires a positive burst")
		}
		c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	}
	clients, codecs := map[string]rest.Interface{}, encoding()
	for version := range kinds {
		client, err := connect(c, version, codecs)
		if err != nil {
			return nil, err
		}
		clients[version.Group] = client
	}
	core := clients[corev1.GroupName]
	return &Client{
		Services: func(namespace string) Reader[*corev1.ServiceList] {
			return newTyped[corev1.Service, corev1.ServiceList](resource{core, "services", namespace})
		},
		EndpointSlices: func(namespace string) Reader[*discoveryv1.EndpointSliceList] {
			return newTyped[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](
				resource{clients[discoveryv1.GroupName], "endpointslices", namespace})
		},
		Nodes: newTyped[corev1.Node, corev1.NodeList](resource{core, "nodes", ""}),
		ServiceCIDRs: newTyped[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](
			resource{clients[networkingv1.GroupName], "servicecidrs", ""}),
		Pods: newTyped[corev1.Pod, corev1.PodList](resource{core, "pods", ""}),
		Events: func(namespace string) Writer[*eventsv1.Event] {
			return newTyped[eventsv1.Event, eventsv1.EventList](
				resource{clients[eventsv1.GroupName], "events", namespace})
		},
		Reviews: newTyped[authenticationv1.SelfSubjectReview, metav1.List](
			resource{clients[authenticationv1.GroupName], "selfsubjectreviews", ""}),
		REST: core,
	}, nil
}

// resource is a kind of objects in the API. client-go's package gentype has typed clients, too. But its fake clients
// import megabytes of libraries.
type resource struct {
	Client rest.Interface
	// Name is the name in the path of a request, such as "services". An empty namespace means all namespaces.
	Name, Namespace string
}

// to directs a request to the resource.
func (r resource) to(request *rest.Request, options runtime.Object) *rest.Request {
	return request.UseProtobufAsDefaultIfPreferred(true).NamespaceIfScoped(r.Namespace, r.Namespace != "").
		Resource(r.Name).SpecificallyVersionedParams(options, metav1.ParameterCodec, metav1.Unversioned)
}

func (r resource) read(o metav1.ListOptions) *rest.Request {
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.to(r.Client.Get(), &o).Timeout(timeout)
}

// Stream returns the encoded list. Close it after reading.
func (r resource) Stream(ctx context.Context, o metav1.ListOptions) (io.ReadCloser, error) {
	return r.read(o).Stream(ctx)
}

// Watch starts a watch.
func (r resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.read(o).Watch(ctx)
}

// object is a pointer to an API object or a list of the type T.
type object[T any] interface {
	*T
	runtime.Object
}

// typed is the client of a resource with objects of the type T and lists of the type L.
type typed[T, L any, Object object[T], List object[L]] struct{ resource }

func newTyped[T, L any, Object object[T], List object[L]](r resource) typed[T, L, Object, List] {
	return typed[T, L, Object, List]{r}
}

func (c typed[T, L, Object, List]) List(ctx context.Context, o metav1.ListOptions) (List, error) {
	list := List(new(L))
	return list, c.read(o).Do(ctx).Into(list)
}

func (c typed[T, L, Object, List]) Create(ctx context.Context, o Object, options metav1.CreateOptions) (Object, error) {
	created := Object(new(T))
	return created, c.to(c.Client.Post(), &options).Body(o).Do(ctx).Into(created)
}

func (c typed[T, L, Object, List]) Patch(
	ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions,
	subresources ...string,
) (Object, error) {
	patched := Object(new(T))
	request := c.to(c.Client.Patch(kind), &options).Name(name).SubResource(subresources...)
	return patched, request.Body(patch).Do(ctx).Into(patched)
}

// connect returns a client of one group and version of the API.
func connect(
	connection *rest.Config, version schema.GroupVersion, encoding runtime.NegotiatedSerializer,
) (*rest.RESTClient, error) {
	c := rest.CopyConfig(connection)
	c.APIPath, c.GroupVersion, c.NegotiatedSerializer = "/apis", &version, encoding
	if version.Group == corev1.GroupName {
		c.APIPath = "/api"
	}
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return client, nil
}
