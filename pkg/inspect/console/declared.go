package console

import (
	"cmp"
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

// declaredAs describes a Service from the API server for the proxy with a service-proxy name, which may be empty.
func declaredAs(svc *corev1.Service, serviceProxyName string) declared {
	return declared{
		Name: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, Selector: svc.Spec.Selector,
		WhyNot: cmp.Or(ofAnotherProxy(svc, serviceProxyName), whyNot(svc)),
	}
}

// ofAnotherProxy returns the reason why a Service is assigned to another proxy, or "".
func ofAnotherProxy(svc *corev1.Service, serviceProxyName string) string {
	const label = labelServiceProxyName
	name, labelled := svc.Labels[label]
	switch {
	case labelled && (serviceProxyName == "" || name != serviceProxyName):
		return fmt.Sprintf("its label %s=%s assigns it to another proxy", label, name)
	case !labelled && serviceProxyName != "":
		return fmt.Sprintf("it lacks the label %s=%s, so another proxy serves it", label, serviceProxyName)
	}
	return ""
}

// whyNot returns the reason why no proxy serves a Service, or "". svc may be a watched Service, which has only the
// fields that are needed to serve it: neither its labels nor its external name. It is assigned to this proxy.
func whyNot(svc *corev1.Service) string {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Sprintf("it is of type ExternalName: DNS returns the name %s, and no proxy serves "+
			"it", cmp.Or(svc.Spec.ExternalName, "in its externalName"))
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless (clusterIP: None): DNS returns the addresses of its pods, and no proxy serves it"
	case svc.Spec.ClusterIP == "":
		return "the API server has not assigned a cluster IP"
	}
	return ""
}
