package console

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// declared describes a Service for the query of a user, whether the Service is served or not.
type declared struct {
	Name types.NamespacedName
	// WhyNot is the reason why kube-nftproxy does not serve the Service, or empty.
	WhyNot string
	// Selector is the Service's pod selector.
	Selector map[string]string
}

// declaredAs describes a Service for the proxy with a service-proxy name, which may be empty. svc must come from the API server: a
// watched Service has only the fields that are needed to serve it.
func declaredAs(svc *corev1.Service, serviceProxyName string) declared {
	d := declared{Name: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, Selector: svc.Spec.Selector}
	const label = labelServiceProxyName
	name, labelled := svc.Labels[label]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		d.WhyNot = fmt.Sprintf("it is of type ExternalName: DNS returns the name %s, and no proxy serves it", svc.Spec.ExternalName)
	case labelled && (serviceProxyName == "" || name != serviceProxyName):
		d.WhyNot = fmt.Sprintf("its label %s=%s assigns it to another proxy", label, name)
	case !labelled && serviceProxyName != "":
		d.WhyNot = fmt.Sprintf("it lacks the label %s=%s, so another proxy serves it", label, serviceProxyName)
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		d.WhyNot = "it is headless (clusterIP: None): DNS returns the addresses of its pods, and no proxy serves it"
	case svc.Spec.ClusterIP == "":
		d.WhyNot = "the API server has not assigned a cluster IP"
	}
	return d
}
