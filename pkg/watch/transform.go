package watch

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Labels that assign Services to a proxy (KEP-2447), and mark EndpointSlices of headless Services (KEP-0752). A label with an empty value
// counts, too.
const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless         = corev1.IsHeadlessService
)

// labelMultiCluster marks the EndpointSlices of a Service that several clusters share (KEP-1645). Some implementations create no
// Service for them in this cluster.
const labelMultiCluster = "multicluster.kubernetes.io/service-name"

// transformer turns API objects into their stored form, which has only the fields that the program reads.
type transformer struct {
	report func(model.Problem)
	// serviceProxyName is the service-proxy name of the Services to keep; empty to keep Services without this label.
	serviceProxyName string
	// ofService and ofSlice are the stored fields.
	ofService, ofSlice []kept
}

// transform is a cache.TransformFunc. It returns objects in stored form unchanged.
func (t transformer) transform(item any) (any, error) {
	switch item := item.(type) {
	case *object:
		return item, nil
	case *corev1.Service:
		return convertDecoded(item, t.service)
	case *discoveryv1.EndpointSlice:
		return convertDecoded(item, t.slice)
	case *corev1.Node:
		return encode(item, stripNode(item))
	case *networkingv1.ServiceCIDR:
		return encode(item, stripServiceCIDR(item))
	}
	return nil, fmt.Errorf("store %T: not a kind that is watched", item)
}

// convertDecoded returns the stored form of a decoded object.
func convertDecoded(item message, convert converter) (*object, error) {
	data, err := item.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %T %s/%s: %w", item, item.GetNamespace(), item.GetName(), err)
	}
	return convert(data)
}

// service returns the stored form of an encoded Service.
func (t transformer) service(data []byte) (*object, error) {
	const spec, clusterIP, kind = 2, 3, 4
	metadata := find(data, fieldMetadata)
	name, labelled := entry(metadata, fieldLabels, labelServiceProxyName)
	ofThisProxy := labelled == (t.serviceProxyName != "") && name == t.serviceProxyName
	of := find(data, spec)
	if !ofThisProxy || string(find(of, clusterIP)) == corev1.ClusterIPNone || string(find(of, kind)) == string(corev1.ServiceTypeExternalName) {
		return exclude(metadata), nil
	}
	return t.stored("Service", metadata, t.ofService, data), nil
}

// stored returns the stored form of an encoded object. It reports an unreadable object and returns it as excluded, because an error
// would hide all other objects.
func (t transformer) stored(kind string, metadata []byte, keep []kept, data []byte) *object {
	o, err := newObject(metadata, keep, data)
	if err != nil {
		o = exclude(metadata)
		t.report(unreadable(kind, o.NamespacedName, err))
	}
	return o
}

// slice returns the stored form of an encoded EndpointSlice.
func (t transformer) slice(data []byte) (*object, error) {
	const addressType = 4
	metadata := find(data, fieldMetadata)
	_, headless := entry(metadata, fieldLabels, labelHeadless)
	_, imported := entry(metadata, fieldLabels, labelMultiCluster)
	owner, owned := entry(metadata, fieldLabels, discoveryv1.LabelServiceName)
	if headless || imported && !owned {
		return exclude(metadata), nil
	}
	o := t.stored("EndpointSlice", metadata, t.ofSlice, data)
	if o.excluded {
		return o, nil
	}
	o.service = model.Cut(owner, model.LongestText)
	o.ipv6 = string(find(data, addressType)) == string(discoveryv1.AddressTypeIPv6)
	o.triggerMicros = t.triggerMicros(o, metadata)
	return o, nil
}

func (t transformer) triggerMicros(o *object, metadata []byte) int64 {
	value, ok := entry(metadata, fieldAnnotations, corev1.EndpointsLastChangeTriggerTime)
	if !ok {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		t.report(model.Problem{
			Kind:  "EndpointSlice",
			Name:  o.NamespacedName,
			Field: "metadata.annotations[" + corev1.EndpointsLastChangeTriggerTime + "]",
			Reason: fmt.Sprintf("%q is not a time in RFC 3339 format; the latency of this change is not measured",
				model.Cut(value, 100)),
		})
		return 0
	}
	return at.UnixMicro()
}

// stripNode keeps only fields that the proxy reads. It drops, for example, the conditions, which the kubelet updates every few
// minutes.
func stripNode(n *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, DeletionTimestamp: n.DeletionTimestamp},
		Spec:       corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	if zone, ok := n.Labels[corev1.LabelTopologyZone]; ok {
		stripped.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return stripped
}

func stripServiceCIDR(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: c.Spec.CIDRs},
	}
}
