package watch

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// watcher watches one resource. It converts protobuf objects of its kind to their stored form without decoding them.
type watcher struct {
	client   rest.Interface
	resource string
}

// watchers returns a watcher for Services and one for EndpointSlices.
func (t transformer) watchers(cfg *rest.Config) (services, slices watcher, err error) {
	client := func(path string, version schema.GroupVersion, kind string, store storing) (*rest.RESTClient, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = path, &version
		c.NegotiatedSerializer = codecs{
			rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion(), version.WithKind(kind), store,
		}
		client, err := rest.RESTClientFor(c)
		if err != nil {
			err = fmt.Errorf("watch %s: %w", kind, err)
		}
		return client, err
	}
	core, err := client("/api", corev1.SchemeGroupVersion, "Service", t.service)
	if err != nil {
		return services, slices, err
	}
	discovery, err := client("/apis", discoveryv1.SchemeGroupVersion, "EndpointSlice", t.slice)
	return watcher{core, "services"}, watcher{discovery, "endpointslices"}, err
}

// Watch does the same as a typed client's Watch.
func (w watcher) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	o.Watch = true
	return w.client.Get().Resource(w.resource).VersionedParams(&o, scheme.ParameterCodec).Timeout(timeout).Watch(ctx)
}

// storing returns the stored form of an encoded object.
type storing func([]byte) (*object, error)

// codecs are client-go's codecs. Only protobuf objects of one kind have another decoder.
type codecs struct {
	runtime.NegotiatedSerializer
	kind  schema.GroupVersionKind
	store storing
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo {
	list := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range list {
		if list[i].MediaType == runtime.ContentTypeProtobuf {
			list[i].Serializer = decoder{list[i].Serializer, c.kind, c.store}
		}
	}
	return list
}

// decoder converts the bytes from the API server directly to the stored form.
type decoder struct {
	runtime.Serializer
	kind  schema.GroupVersionKind
	store storing
}

// magic is the prefix of the API's protobuf. After it comes a runtime.Unknown with the object.
const magic = "k8s\x00"

// Decode implements runtime.Decoder. It leaves other kinds, such as a Status, and objects without a name, such as a bookmark, to
// client-go's decoder.
func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	const typeMeta, kind, raw = 1, 2, 2
	envelope, isProtobuf := bytes.CutPrefix(data, []byte(magic))
	encoded := find(envelope, raw)
	if !isProtobuf || into != nil || string(find(find(envelope, typeMeta), kind)) != d.kind.Kind ||
		len(find(find(encoded, fieldMetadata), fieldName)) == 0 {
		return d.Serializer.Decode(data, defaults, into)
	}
	o, err := d.store(encoded)
	return o, &d.kind, err
}
