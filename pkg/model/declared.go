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
		d.WhyNot = fmt.Sprintf("it is of type ExternalName: DNS answers with the name %s, and no proxy has to do with it", svc.Spec.ExternalName)
	case others:
		d.WhyNot = fmt.Sprintf("its label %s=%s leaves it to another proxy; without the label it would be served here", label, other)
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		d.WhyNot = "it is headless (clusterIP: None): DNS answers with the pods' own addresses and ports, and no proxy has to do with it"
	case svc.Spec.ClusterIP == "":
		d.WhyNot = "the API server hasn't given it a cluster IP"
	}
	return d
}

// loadBalancerNotes tells which addresses of load balancers aren't served, and why.
func loadBalancerNotes(svc *corev1.Service) (notes []string) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return []string{"it has no load balancer yet: status.loadBalancer is empty; the cloud's controller, or what stands in for it, gives it an address"}
	}
	for _, ing := range svc.Status.LoadBalancer.Ingress {
		switch {
		case ing.IP == "":
			notes = append(notes, "its load balancer is known by a name, not by an address: it sends to the node ports")
		case ing.IPMode != nil && *ing.IPMode != corev1.LoadBalancerIPModeVIP:
			notes = append(notes, fmt.Sprintf("%s isn't served here (its ipMode is %s): the load balancer itself has that address, also for pods, and "+
				"sends to the node ports", ing.IP, *ing.IPMode))
		}
	}
	return notes
}
