package manifests

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// setDefaults sets the API server's defaults in fields that the proxy depends on. It allocates no cluster IPs and no
// node ports.
func setDefaults(item runtime.Object) {
	switch item := item.(type) {
	case *corev1.Service:
		setServiceDefaults(item)
	case *discoveryv1.EndpointSlice:
		setSliceDefaults(item)
	case *corev1.Pod:
		setString(&item.Namespace, metav1.NamespaceDefault)
	case metav1.Object: // all other kinds are cluster-scoped
		item.SetNamespace("")
	}
}

func setServiceDefaults(s *corev1.Service) {
	setString(&s.Namespace, metav1.NamespaceDefault)
	setString(&s.Spec.Type, corev1.ServiceTypeClusterIP)
	setString(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	for i := range s.Spec.Ports {
		setString(&s.Spec.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	setString(&s.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	setPointer(&s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	setAffinityDefaults(&s.Spec)
	setClusterIPDefaults(&s.Spec)
}

func setAffinityDefaults(spec *corev1.ServiceSpec) {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return
	}
	setPointer(&spec.SessionAffinityConfig, corev1.SessionAffinityConfig{})
	setPointer(&spec.SessionAffinityConfig.ClientIP, corev1.ClientIPConfig{})
	setPointer(&spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds)
}

func setClusterIPDefaults(spec *corev1.ServiceSpec) {
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = familiesOf(spec.ClusterIPs)
	}
}

// familiesOf returns the families of addresses, or nil if an address is invalid: a shorter list would assign wrong
// families to the next addresses.
func familiesOf(addresses []string) []corev1.IPFamily {
	var families []corev1.IPFamily
	for _, address := range addresses {
		addr, err := netip.ParseAddr(address)
		switch {
		case err != nil:
			return nil
		case addr.Is4():
			families = append(families, corev1.IPv4Protocol)
		default:
			families = append(families, corev1.IPv6Protocol)
		}
	}
	return families
}

func setSliceDefaults(s *discoveryv1.EndpointSlice) {
	setString(&s.Namespace, metav1.NamespaceDefault)
	for i := range s.Ports {
		setPointer(&s.Ports[i].Name, "")
		setPointer(&s.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

func setString[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
