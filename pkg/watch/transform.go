package watch

import (
	"fmt"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Labels that assign Services to a proxy (KEP-2447), and mark EndpointSlices of headless Services (KEP-0752). A label
// with an empty value counts, too.
const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless         = corev1.IsHeadlessService
)

// labelMultiCluster marks the EndpointSlices of a Service that several clusters share (KEP-1645). Some
// implementations create no Service for them in this cluster.
const labelMultiCluster = "multicluster.kubernetes.io/service-name"

// transformer turns API objects into their stored form, which has only the fields that the program reads.
type transformer struct {
	report func(model.Problem)
	// podsOf is the name of the node whose pods to keep; empty for none.
	podsOf string
	// serviceProxyName is the service-proxy name of the Services to keep; empty to keep Services without this label.
	serviceProxyName string
	limits           model.Limits
	ofSlice          model.Stored
}

// transform is a cache.TransformFunc. It returns objects in stored form unchanged.
func (t transformer) transform(item any) (any, error) {
	switch item := item.(type) {
	case *object:
		return item, nil
	case *corev1.Service:
		return t.service(item), nil
	case *discoveryv1.EndpointSlice:
		return t.slice(item), nil
	case *corev1.Node:
		return newObject(item, stripNode(item)), nil
	case *networkingv1.ServiceCIDR:
		return newObject(item, stripServiceCIDR(item)), nil
	case *corev1.Pod:
		return newObject(item, t.pod(item)), nil
	}
	return nil, fmt.Errorf("store %T: not a kind that is watched", item)
}

// service returns the stored form of a Service. It excludes Services that this proxy does not serve.
func (t transformer) service(s *corev1.Service) *object {
	name, labelled := s.Labels[labelServiceProxyName]
	ofThisProxy := labelled == (t.serviceProxyName != "") && name == t.serviceProxyName
	if !ofThisProxy || s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.Type == corev1.ServiceTypeExternalName {
		return newObject(s, nil)
	}
	return newObject(s, stripService(s, &t.limits))
}

// slice returns the stored form of an EndpointSlice. It excludes the slices of headless Services, and of Services of
// other clusters.
func (t transformer) slice(s *discoveryv1.EndpointSlice) *object {
	_, headless := s.Labels[labelHeadless]
	_, imported := s.Labels[labelMultiCluster]
	owner, owned := s.Labels[discoveryv1.LabelServiceName]
	if headless || imported && !owned {
		return newObject(s, nil)
	}
	value := model.NewSlice(s, t.limits, t.ofSlice)
	o := newObject(s, value)
	o.service = model.Cut(owner, model.LongestText)
	o.ipv6 = value.AddressType == discoveryv1.AddressTypeIPv6
	o.triggerMicros = t.triggerMicros(s)
	return o
}

func (t transformer) triggerMicros(s *discoveryv1.EndpointSlice) int64 {
	value, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		t.report(model.Problem{
			Kind:  "EndpointSlice",
			Name:  types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
			Field: "metadata.annotations[" + corev1.EndpointsLastChangeTriggerTime + "]",
			Reason: fmt.Sprintf("%q is not a time in RFC 3339 format; the latency of this change is not measured",
				model.Cut(value, 100)),
		})
		return 0
	}
	return at.UnixMicro()
}

// text cuts a text at its limit.
func text[T ~string](s T) T { return T(model.Cut(string(s), model.LongestText)) }

// word does the same for a text that many objects have.
func word[T ~string](s T) T { return T(unique.Make(string(text(s))).Value()) }

// pointed returns a pointer to a copy of a text, cut at its limit.
func pointed[T ~string](s *T) *T {
	if s == nil {
		return nil
	}
	return new(word(*s))
}

// some returns the first items of a list, each converted. It has at most one item above a limit, so that the model
// reports the limit.
func some[T any](list []T, limit int, convert func(T) T) (out []T) {
	if len(list) > 0 {
		out = make([]T, 0, min(len(list), limit+1))
	}
	for _, item := range list[:min(len(list), limit+1)] {
		out = append(out, convert(item))
	}
	return out
}

// stripService keeps only fields that the program reads, within the limits.
func stripService(s *corev1.Service, l *model.Limits) *corev1.Service {
	in := &s.Spec
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: word(s.Namespace), Name: s.Name, UID: s.UID, CreationTimestamp: s.CreationTimestamp,
			Annotations: model.StoredAnnotations(s.Annotations, false),
		},
		Spec: corev1.ServiceSpec{
			Type: word(in.Type), ClusterIP: text(in.ClusterIP), HealthCheckNodePort: in.HealthCheckNodePort,
			ClusterIPs: some(in.ClusterIPs, model.MostFamilies, text), IPFamilies: some(in.IPFamilies, model.MostFamilies, word),
			ExternalIPs: some(in.ExternalIPs, l.Addresses, text), LoadBalancerClass: pointed(in.LoadBalancerClass),
			LoadBalancerSourceRanges: some(in.LoadBalancerSourceRanges, l.Items(), text),
			SessionAffinity:          word(in.SessionAffinity), SessionAffinityConfig: in.SessionAffinityConfig,
			ExternalTrafficPolicy: word(in.ExternalTrafficPolicy), InternalTrafficPolicy: pointed(in.InternalTrafficPolicy),
			Ports: some(in.Ports, l.Ports, func(p corev1.ServicePort) corev1.ServicePort {
				return corev1.ServicePort{Name: word(p.Name), Protocol: word(p.Protocol), Port: p.Port, NodePort: p.NodePort}
			}),
		},
	}
	// An entry without an address is stored, too, because problems contain the index of an entry.
	stripIngress := func(i corev1.LoadBalancerIngress) corev1.LoadBalancerIngress {
		return corev1.LoadBalancerIngress{IP: text(i.IP), IPMode: pointed(i.IPMode)}
	}
	out.Status.LoadBalancer.Ingress = some(s.Status.LoadBalancer.Ingress, l.Addresses, stripIngress)
	return out
}

// stripNode keeps only fields that the proxy reads. It drops, for example, the conditions, which the kubelet updates
// every few minutes.
func stripNode(n *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, DeletionTimestamp: n.DeletionTimestamp, Labels: n.Labels,
		},
		Spec:   corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints},
		Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	return stripped
}

// pod returns the stored form of a pod: only the host ports, all in one container, and what they need. It returns nil
// for a pod without host ports, for a pod that has no address yet, and for a pod of another node.
func (t transformer) pod(p *corev1.Pod) any {
	ports := some(model.HostPorts(p), model.MostHostPorts, func(c corev1.ContainerPort) corev1.ContainerPort {
		return corev1.ContainerPort{
			HostPort: c.HostPort, ContainerPort: c.ContainerPort, Protocol: word(c.Protocol), HostIP: word(c.HostIP),
		}
	})
	if len(ports) == 0 || len(p.Status.PodIPs) == 0 || p.Spec.NodeName != t.podsOf {
		return nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: word(p.Namespace), Name: p.Name, UID: p.UID, CreationTimestamp: p.CreationTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: word(p.Spec.NodeName), Containers: []corev1.Container{{Ports: ports}}},
		Status: corev1.PodStatus{PodIPs: some(p.Status.PodIPs, model.MostFamilies, func(ip corev1.PodIP) corev1.PodIP {
			return corev1.PodIP{IP: text(ip.IP)}
		})},
	}
}

func stripServiceCIDR(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: c.Spec.CIDRs},
	}
}
