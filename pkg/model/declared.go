package model

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/types"
)

// Declared is what a person should know of a Service that they ask about, served or not.
type Declared struct {
	Name types.NamespacedName
	// WhyNot says why no proxy of this kind serves it; empty if one should.
	WhyNot string
	// Selector is what its pods are selected by.
	Selector map[string]string
}

// DeclaredAs tells of a Service as the API server has it, unlike the ones that are watched, which lack what isn't served.
func DeclaredAs(svc *corev1.Service) Declared {
	d := Declared{Name: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, Selector: svc.Spec.Selector}
	const label = "service.kubernetes.io/service-proxy-name"
	other, others := svc.Labels[label]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		d.WhyNot = fmt.Sprintf("it is of type ExternalName: DNS returns the name %s, and no proxy serves it", svc.Spec.ExternalName)
	case others:
		d.WhyNot = fmt.Sprintf("its label %s=%s assigns it to another proxy", label, other)
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		d.WhyNot = "it is headless (clusterIP: None): DNS returns the addresses of its pods, and no proxy serves it"
	case svc.Spec.ClusterIP == "":
		d.WhyNot = "the API server has not assigned a cluster IP"
	}
	return d
}

// loadBalancerNotes tells which addresses of load balancers aren't served, and why.
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
