package model

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/types"
)

// Declared describes a Service for the query of a user, whether the Service is served or not.
type Declared struct {
	Name types.NamespacedName
	// WhyNot is the reason why kube-nftproxy does not serve the Service, or empty.
	WhyNot string
	// Selector is the Service's pod selector.
	Selector map[string]string
}

// DeclaredAs describes a Service for the proxy with a service-proxy name, which may be empty. svc must be an object of the API server: a stored
// Service has only the fields that are needed to serve it.
func DeclaredAs(svc *corev1.Service, serviceProxyName string) Declared {
	d := Declared{Name: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, Selector: svc.Spec.Selector}
	const label = "service.kubernetes.io/service-proxy-name"
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

// loadBalancerNotes returns a note for each load-balancer address that is not served, or one note if there is no address yet.
func loadBalancerNotes(svc *corev1.Service) (notes []string) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return []string{"it has no load balancer yet: status.loadBalancer is empty; a load-balancer controller must assign an address"}
	}
	for _, ing := range svc.Status.LoadBalancer.Ingress {
		switch {
		case ing.IP == "":
			notes = append(notes, "its load balancer has a name, not an address, and sends traffic to the node ports")
		case ing.IPMode != nil && *ing.IPMode != corev1.LoadBalancerIPModeVIP:
			notes = append(notes, fmt.Sprintf("%s is not served here (its ipMode is %s): packets to it, also from pods, reach the load balancer, which "+
				"sends traffic to the node ports", ing.IP, *ing.IPMode))
		}
	}
	return notes
}
