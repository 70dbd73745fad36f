package hostile

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// evilIP is the cluster IP of the last Service of an attack. It must be served on port 1: the program may skip only the excess part of an
// object.
const evilIP = "10.96.6.6"

// attack is a set of hostile objects.
type attack struct {
	name string
	// objects returns the objects of tenant evil. The test writes versions 0, 1 and 2, one after the other.
	objects func(n *node, version int) []runtime.Object
	// silent is true if evilIP need not answer.
	silent bool
}

// mostMemory is the limit of the program's peak memory in MiB.
const mostMemory = 200

// The sizes of the attacks are chosen so that a sum of two of their numbers is much smaller than the product.
var attacks = []attack{
	{name: "200 ordinary Services", objects: func(n *node, version int) (list []runtime.Object) {
		for i := range 200 {
			name := fmt.Sprintf("evil/shop-%d", i)
			s := service(name, fmt.Sprintf("10.96.7.%d", i+1))
			s.Spec.Ports = ports(80, 3)
			list = append(list, s, slice(name, 0, portNames(s.Spec.Ports), backendPort, addresses("10.244.16.1", 4+version, 1)...))
		}
		return append(list, evil(n, func(*corev1.Service) {})...)
	}},
	{name: "45,000 unusable externalIPs", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) { s.Spec.ExternalIPs = slices.Repeat([]string{"1::"}, 45_000+version) })
	}},
	{name: "30,000 different unusable externalIPs", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) { s.Spec.ExternalIPs = texts(addresses("1::", 30_000+version, 1)) })
	}},
	{name: "1,000 source ranges for 20 ports", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) {
			s.Spec.Ports = ports(1, 20)
			s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: "203.0.113.66"}}
			s.Spec.LoadBalancerSourceRanges = ranges(1_000 - version)
		})
	}},
	{name: "1,000 source ranges for 500 ports", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) {
			s.Spec.Ports = ports(1, 500)
			s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: "203.0.113.66"}}
			s.Spec.LoadBalancerSourceRanges = ranges(1_000 - version)
		})
	}},
	{name: "100 externalIPs x 50 ports x 40 endpoints", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) {
			s.Spec.Ports = ports(1, 50)
			s.Spec.ExternalIPs = texts(addresses("198.18.0.1", 100, 1))
		}, addresses("10.244.16.1", 39+version, 1)...)
	}},
	{name: "400 externalIPs x 100 ports x 10 endpoints", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) {
			s.Spec.Ports = ports(1, 100)
			s.Spec.ExternalIPs = texts(addresses("198.18.0.1", 400, 1))
		}, addresses("10.244.16.1", 9+version, 1)...)
	}},
	{name: "4,000 externalIPs x 250 ports", objects: func(n *node, version int) []runtime.Object {
		return evil(n, func(s *corev1.Service) {
			s.Spec.Ports = ports(1, 250)
			s.Spec.ExternalIPs = texts(addresses("198.18.0.1", 4_000+version, 1))
		})
	}},
	{name: "40 Services claim the same 2,500 keys", objects: func(n *node, version int) (list []runtime.Object) {
		for i := range 40 {
			s := service(fmt.Sprintf("evil/claim-%d", i), fmt.Sprintf("10.96.7.%d", i+1))
			s.Spec.Ports, s.Spec.ExternalIPs = ports(1, 50), texts(addresses("198.18.0.1", 50+version, 1))
			list = append(list, s)
		}
		return append(list, evil(n, func(*corev1.Service) {})...)
	}},
	{name: "4,000 Services claim one key", objects: func(n *node, version int) (list []runtime.Object) {
		for i, a := range addresses("10.96.16.1", 4_000+version, 1) {
			s := service(fmt.Sprintf("evil/claim-%d", i), a.String())
			s.Spec.Ports, s.Spec.ExternalIPs = ports(1, 1), []string{"198.18.0.1"}
			list = append(list, s)
		}
		return append(list, evil(n, func(*corev1.Service) {})...)
	}},
	{name: "5,000 ports", objects: func(n *node, version int) []runtime.Object {
		list := evil(n, func(s *corev1.Service) {
			s.Spec.Ports, s.Spec.ClusterIPs = ports(1, 5_000), []string{evilIP, "fd00:10:96::666"}
			for i := range s.Spec.Ports[2_500:] {
				s.Spec.Ports[2_500+i].Protocol = corev1.ProtocolUDP
			}
		}, addresses("10.244.16.1", 4+version, 1)...)
		return append(list, slice("evil/last", 2, portNames(ports(1, 2_500)), backendPort, addresses("2001:db8:d::1", 4+version, 1)...))
	}},
	{name: "slices of 20,000 ports and 1,000 endpoints", objects: func(n *node, version int) []runtime.Object {
		list := evil(n, func(*corev1.Service) {})
		for i := range 3 {
			s := slice("evil/last", 10+i, portNames(ports(2, 20_000)), backendPort, addresses("10.244.16.1", 1_000-version, 1)...)
			for j := range s.Endpoints {
				s.Endpoints[j].NodeName = nil
			}
			list = append(list, s)
		}
		return list
	}},
	{name: "20,000 ports without a number", objects: func(n *node, version int) []runtime.Object {
		list := evil(n, func(*corev1.Service) {})
		s := slice("evil/last", 10, portNames(ports(2, 20_000)), backendPort, addresses("10.244.16.1", 1+version, 1)...)
		for i := range s.Ports {
			s.Ports[i].Port = nil
		}
		return append(list, s)
	}},
	{name: "16,000 endpoints that share a hash", silent: true, objects: func(n *node, version int) []runtime.Object {
		s := service("evil/last", "fd00:10:96::666")
		s.Spec.Ports, s.Spec.SessionAffinity = ports(1, 1), corev1.ServiceAffinityClientIP
		return append(slicesOf("evil/last", portNames(s.Spec.Ports), backendPort, twins(16_000-version)), s)
	}},
	{name: "1,000 affinity timeouts and 200 numbers of endpoints", objects: func(n *node, version int) (list []runtime.Object) {
		for i := range 1_000 {
			name := fmt.Sprintf("evil/sticky-%d", i)
			s := service(name, addresses("10.96.16.1", 1, 1)[0].String())
			s.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", 16+i/200, i%200+1)
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
			timeout := int32(100 + i)
			s.Spec.Ports, s.Spec.SessionAffinity = ports(80, 1), corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
			endpoints := 1 + (i+version)%200
			if i >= 200 { // all numbers of endpoints are in use; more endpoints would only make the manifests larger
				endpoints = 1 + (i+version)%5
			}
			list = append(list, s, slice(name, 0, portNames(s.Spec.Ports), backendPort, addresses("10.244.16.1", endpoints, 1)...))
		}
		return append(list, evil(n, func(*corev1.Service) {})...)
	}},
}

// evil returns the last Service of an attack, with a change. Its endpoints are evil's pod and the given others.
func evil(n *node, change func(*corev1.Service), others ...netip.Addr) []runtime.Object {
	s := service("evil/last", evilIP)
	s.Spec.Ports = ports(1, 1)
	change(s)
	list := []runtime.Object{s}
	if len(others) > 0 {
		list = append(list, slice("evil/last", 1, portNames(s.Spec.Ports), backendPort, others...))
	}
	return append(list, slice("evil/last", 0, portNames(s.Spec.Ports), backendPort, n.Pods[2].IPv4))
}

// ranges returns n source ranges that cannot be joined. None contains the lab's client.
func ranges(n int) (list []string) {
	for _, a := range addresses("198.18.0.0", n, 2) {
		list = append(list, a.String()+"/32")
	}
	return list
}

// TestAttacks writes the objects of each attack. Bank's changes must be served meanwhile, after a flush of the ruleset, after a restart, and
// during the deletion of the objects. The numbers of elements and log lines and the memory must stay within limits that add up. After the
// deletion, no element of evil may be left.
func TestAttacks(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			n := newBank(t)
			bank := func(when string) { t.Logf("bank's change takes %v %s, %v without evil", n.bank(), when, n.usual) }
			before, lines := n.elements(), n.lines()
			n.forgetPeak()
			var objects []runtime.Object
			for version := range 3 {
				objects = a.objects(n, version)
				n.put("evil", objects...)
				bank(fmt.Sprintf("beside version %d", version))
			}
			if !a.silent {
				n.until(patience, "evil's cluster IP", func() error { return n.answered(evilIP+":1", "pod-2") })
			}
			n.atMost("elements", float64(n.elements()), float64(before+mostElements(objects)))
			n.atMost("log lines", float64(n.lines()-lines), float64(100+60*len(objects)))
			n.nft("flush", "ruleset")
			t.Logf("the repair for bank takes %v", n.until(patience, "the repair", n.bankServed))
			n.atMost("MiB of memory", n.memory("VmHWM"), mostMemory)
			n.Kill()
			n.start()
			bank("after a restart")
			n.atMost("MiB of memory after a restart", n.memory("VmHWM"), mostMemory)
			n.drop("evil")
			bank("while evil's objects are deleted")
			n.until(10*patience, "the removal", func() error { // not urgent for others
				if now := n.elements(); now > before {
					return fmt.Errorf("%d elements, %d before the attack", now, before)
				}
				return nil
			})
		})
	}
}

// atMost fails the test if a figure exceeds its limit.
func (n *node) atMost(what string, got, most float64) {
	n.Helper()
	n.Logf("%s: %.0f, at most %.0f", what, got, most)
	if got > most {
		n.Errorf("%s: %.0f, want at most %.0f", what, got, most)
	}
}

// frontendsOfAService is the limit of the frontends of one Service.
const frontendsOfAService = 10_000

// mostElements returns the permitted number of elements for objects: a few for each frontend, for each endpoint of a service port, and for each
// source range.
func mostElements(objects []runtime.Object) int {
	frontends, endpoints, named := 0, 0, map[string]bool{}
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok {
			addrs := len(s.Spec.ClusterIPs) + len(s.Spec.ExternalIPs) + len(s.Status.LoadBalancer.Ingress)
			frontends += min(addrs*len(s.Spec.Ports), frontendsOfAService) + 2*len(s.Spec.Ports) + len(s.Spec.LoadBalancerSourceRanges)
			for _, p := range s.Spec.Ports {
				named[s.Namespace+"/"+s.Name+":"+p.Name] = true
			}
		}
	}
	for _, o := range objects {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			for _, p := range s.Ports {
				if named[s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName]+":"+*p.Name] {
					endpoints += len(s.Endpoints)
				}
			}
		}
	}
	return 200 + 4*(frontends+endpoints)
}
