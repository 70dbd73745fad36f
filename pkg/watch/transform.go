package watch

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// The labels by which other proxies' Services and headless Services' EndpointSlices are told from ours. Any value,
// even an empty one, excludes (KEP-2447 and KEP-0752).
const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless         = corev1.IsHeadlessService
)

// transformer turns API objects into their stored form. It holds no more than what somebody downstream reads: a
// field that is missing here is missing everywhere.
type transformer struct {
	report func(model.Problem)
}

// transform is a cache.TransformFunc. It leaves alone what went through it before.
func (t transformer) transform(item any) (any, error) {
	switch item := item.(type) {
	case *object:
		return item, nil
	case *corev1.Service:
		return transformService(item)
	case *discoveryv1.EndpointSlice:
		return t.slice(item)
	case *corev1.Node:
		return encode(item, stripNode(item))
	case *networkingv1.ServiceCIDR:
		return encode(item, stripServiceCIDR(item))
	}
	return nil, fmt.Errorf("store %T: not a kind that is watched", item)
}

func transformService(s *corev1.Service) (*object, error) {
	if _, others := s.Labels[labelServiceProxyName]; others || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return exclude(s), nil
	}
	return encode(s, stripService(s))
}

func (t transformer) slice(s *discoveryv1.EndpointSlice) (*object, error) {
	if _, headless := s.Labels[labelHeadless]; headless {
		return exclude(s), nil
	}
	o, err := encode(s, stripSlice(s))
	if err != nil {
		return nil, err
	}
	o.service = s.Labels[discoveryv1.LabelServiceName]
	o.trigger = track.Trigger{At: t.trigger(s), IPv6: s.AddressType == discoveryv1.AddressTypeIPv6}
	return o, nil
}

func (t transformer) trigger(s *discoveryv1.EndpointSlice) time.Time {
	value, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		t.report(model.Problem{
			Kind:   "EndpointSlice",
			Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
			Field:  "metadata.annotations[" + corev1.EndpointsLastChangeTriggerTime + "]",
			Reason: fmt.Sprintf("%q is not a time in RFC 3339 format; its latency is not measured", value),
		})
	}
	return at.UTC()
}

func stripService(s *corev1.Service) *corev1.Service {
	spec := &s.Spec
	stripped := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         s.Namespace,
			Name:              s.Name,
			UID:               s.UID,
			CreationTimestamp: s.CreationTimestamp,
		},
		Spec: corev1.ServiceSpec{
			Type:                     spec.Type,
			ClusterIP:                spec.ClusterIP,
			ClusterIPs:               spec.ClusterIPs,
			IPFamilies:               spec.IPFamilies,
			ExternalIPs:              spec.ExternalIPs,
			ExternalTrafficPolicy:    spec.ExternalTrafficPolicy,
			InternalTrafficPolicy:    spec.InternalTrafficPolicy,
			SessionAffinity:          spec.SessionAffinity,
			SessionAffinityConfig:    spec.SessionAffinityConfig,
			LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges,
			HealthCheckNodePort:      spec.HealthCheckNodePort,
		},
	}
	for _, port := range spec.Ports {
		stripped.Spec.Ports = append(stripped.Spec.Ports, corev1.ServicePort{
			Name: port.Name, Protocol: port.Protocol, Port: port.Port, NodePort: port.NodePort,
		})
	}
	// Entries without an address stay, so that the indexes of the others do.
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		stripped.Status.LoadBalancer.Ingress = append(stripped.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: ingress.IP, IPMode: ingress.IPMode,
		})
	}
	return stripped
}

func stripSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	stripped := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID},
		AddressType: s.AddressType,
		Endpoints:   make([]discoveryv1.Endpoint, 0, len(s.Endpoints)),
	}
	for _, port := range s.Ports {
		stripped.Ports = append(stripped.Ports, discoveryv1.EndpointPort{
			Name: port.Name, Protocol: port.Protocol, Port: port.Port,
		})
	}
	for i := range s.Endpoints {
		endpoint := &s.Endpoints[i]
		stripped.Endpoints = append(stripped.Endpoints, discoveryv1.Endpoint{
			Addresses:  endpoint.Addresses[:min(1, len(endpoint.Addresses))], // the API gives no meaning to the others
			Conditions: endpoint.Conditions,
			NodeName:   endpoint.NodeName,
			Hints:      endpoint.Hints,
		})
	}
	return stripped
}

// stripNode leaves out the conditions above all: the kubelet renews them every few minutes.
func stripNode(n *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, DeletionTimestamp: n.DeletionTimestamp},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	if zone, ok := n.Labels[corev1.LabelTopologyZone]; ok {
		stripped.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return stripped
}

func stripServiceCIDR(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: c.UID},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: c.Spec.CIDRs},
	}
}
