package watch

import (
	"bytes"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// watchers returns clients that watch Services and EndpointSlices. A watch converts protobuf objects of its kind to their stored form without decoding
// them.
func (t transformer) watchers(cfg *rest.Config) (services, slices kubeapi.Resource, err error) {
	encoding := kubeapi.Serializer()
	client := func(version schema.GroupVersion, kind string, convert converter) (*rest.RESTClient, error) {
		return kubeapi.Connect(cfg, version, codecs{encoding, version.WithKind(kind), convert})
	}
	core, err := client(corev1.SchemeGroupVersion, "Service", t.service)
	if err != nil {
		return services, slices, err
	}
	discovery, err := client(discoveryv1.SchemeGroupVersion, "EndpointSlice", t.slice)
	return kubeapi.Resource{Client: core, Name: "services"}, kubeapi.Resource{Client: discovery, Name: "endpointslices"}, err
}

// converter returns the stored form of an encoded object.
type converter func([]byte) (*object, error)

// codecs are client-go's codecs, with a [decoder] for protobuf objects of one kind.
type codecs struct {
	runtime.NegotiatedSerializer
	kind    schema.GroupVersionKind
	convert converter
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo {
	list := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range list {
		if list[i].MediaType == runtime.ContentTypeProtobuf {
			list[i].Serializer = decoder{list[i].Serializer, c.kind, c.convert}
		}
	}
	return list
}

// decoder converts the bytes from the API server directly to the stored form.
type decoder struct {
	runtime.Serializer
	kind    schema.GroupVersionKind
	convert converter
}

// magic is the prefix of the API's protobuf. A runtime.Unknown with the object follows.
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
	o, err := d.convert(encoded)
	return o, &d.kind, err
}
