package oracle

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// endpoint is an endpoint of a service port.
type endpoint struct {
	addr                               netip.AddrPort
	local, ready, serving, terminating bool
	// nodeless is true if the slice names no node.
	nodeless bool
	// forSomeNode and forSomeZone are true if it has hints, forNode and forZone if one is for this node.
	forSomeNode, forNode, forSomeZone, forZone bool
	weight                                     int
	// passive is true if another Service's endpoints precede it, see settleRedirects.
	passive bool
}

// readSlice adds the endpoints of a slice to the service ports of the same names: several slices may serve one port.
func (r *Oracle) readSlice(s *discoveryv1.EndpointSlice) {
	service, named := s.Labels[discoveryv1.LabelServiceName]
	_, headless := s.Labels[corev1.IsHeadlessService]
	six := s.AddressType == discoveryv1.AddressTypeIPv6
	if !named || headless || !six && s.AddressType != discoveryv1.AddressTypeIPv4 {
		return
	}
	for _, p := range s.Ports {
		if p.Port == nil || *p.Port == 0 {
			continue
		}
		port := &corev1.ServicePort{}
		if p.Name != nil {
			port.Name = *p.Name
		}
		if p.Protocol != nil {
			port.Protocol = *p.Protocol
		}
		of := key(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: service}}, port, six)
		for i := range s.Endpoints {
			if e, ok := r.readEndpoint(&s.Endpoints[i], uint16(*p.Port), six); ok {
				if e.weight = weight(s, e.addr.Addr()); e.weight == 0 {
					e.ready, e.terminating = false, false
				}
				r.endpoints[of] = append(r.endpoints[of], e)
			}
		}
	}
}

// weight returns the weight of an endpoint: its own, else that of its slice, else 1. An endpoint of weight 0 gets no new connections, and may
// continue existing ones (docs/algorithms.md).
func weight(s *discoveryv1.EndpointSlice, a netip.Addr) int {
	w := 1
	read := func(text string) {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			w = int(n)
		}
	}
	read(s.Annotations["service.cilium.io/weight"])
	for _, item := range strings.Split(s.Annotations["kube-nftproxy.io/weights"], ",") {
		if addr, text, ok := strings.Cut(item, "="); ok && addr == a.String() {
			read(text)
		}
	}
	return w
}

// readEndpoint uses the first of several addresses, which the API calls fungible. Missing conditions mean ready, serving and not
// terminating.
func (r *Oracle) readEndpoint(e *discoveryv1.Endpoint, port uint16, six bool) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || addr.Is6() != six {
		return endpoint{}, false
	}
	said := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	out := endpoint{
		addr:        netip.AddrPortFrom(addr, port),
		local:       e.NodeName != nil && *e.NodeName == r.machine.Name,
		nodeless:    e.NodeName == nil || *e.NodeName == "",
		ready:       said(e.Conditions.Ready, true),
		serving:     said(e.Conditions.Serving, true),
		terminating: said(e.Conditions.Terminating, false),
	}
	if e.Hints == nil {
		return out, true
	}
	out.forSomeNode, out.forSomeZone = len(e.Hints.ForNodes) > 0, len(e.Hints.ForZones) > 0
	out.forNode = slices.ContainsFunc(e.Hints.ForNodes, func(h discoveryv1.ForNode) bool { return h.Name == r.machine.Name })
	out.forZone = slices.ContainsFunc(e.Hints.ForZones, func(h discoveryv1.ForZone) bool { return r.zone != "" && h.Name == r.zone })
	return out, true
}

// choose returns the endpoints of policy Cluster and those of policy Local. Ready ones serve; if there are none, those that still
// serve while they terminate (KEP-1669), independently for each policy. Hints apply to policy Cluster only, and only to ready
// endpoints.
func (r *Oracle) choose(list []endpoint) (cluster, local []endpoint) {
	list = unique(list)
	lastHope := func(e endpoint) bool { return e.serving && e.terminating }
	onNode := only(list, func(e endpoint) bool { return e.local })
	if local = ready(onNode); len(local) == 0 {
		local = only(onNode, lastHope)
	}
	if cluster = ready(list); len(cluster) == 0 {
		return only(list, lastHope), local
	}
	cluster, _ = hinted(cluster)
	return cluster, local
}

func ready(list []endpoint) []endpoint { return only(list, func(e endpoint) bool { return e.ready }) }

// hinted: hints apply if every endpoint has one and one of them is for this node. Hints for nodes precede those for
// zones. near is true if hints apply.
func hinted(list []endpoint) (chosen []endpoint, near bool) {
	all := func(f func(endpoint) bool) bool { return len(only(list, f)) == len(list) }
	forNode := only(list, func(e endpoint) bool { return e.forNode })
	forZone := only(list, func(e endpoint) bool { return e.forZone })
	switch {
	case len(forNode) > 0 && all(func(e endpoint) bool { return e.forSomeNode }):
		return forNode, true
	case len(forZone) > 0 && all(func(e endpoint) bool { return e.forSomeZone }):
		return forZone, true
	}
	return list, false
}

func addrs(list []endpoint) (out []netip.AddrPort) {
	for _, e := range list {
		out = append(out, e.addr)
	}
	return out
}

func weights(list []endpoint) (out []int) {
	for _, e := range list {
		out = append(out, e.weight)
	}
	return out
}

func only(list []endpoint, f func(endpoint) bool) (out []endpoint) {
	for _, e := range list {
		if f(e) {
			out = append(out, e)
		}
	}
	return out
}

// unique removes duplicates of an address and port, keeps the more usable one, else that of the greater weight, and sorts by address. An endpoint may
// temporarily be in two slices. A reused address may be terminating in one and ready in the other.
func unique(list []endpoint) []endpoint {
	rank := func(e endpoint) (n int) {
		for _, yes := range []bool{
			!e.passive, !e.terminating, e.ready, e.serving, e.local, e.forNode, e.forSomeNode, e.forZone, e.forSomeZone,
		} {
			if n *= 2; yes {
				n++
			}
		}
		return n
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b endpoint) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(rank(b), rank(a)), cmp.Compare(b.weight, a.weight))
	})
	return slices.CompactFunc(list, func(a, b endpoint) bool { return a.addr == b.addr })
}
