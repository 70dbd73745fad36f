package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Explanation is the result of [Build], with the reason for each endpoint that a policy does not use.
type Explanation struct {
	*Service
	// Ports explain the ports of the Service, in the same order.
	Ports []PortExplanation
	// Others are endpoints that no port can use. They have no usable address, or their slice has no usable port or is
	// of a family that is not served.
	Others []Candidate
	// Notes list load-balancer addresses that are not served, with the reasons, the termination of connections and
	// their timeouts, and the reason why the Service has direct server return or NAT.
	Notes []string
}

// PortExplanation explains one service port.
type PortExplanation struct {
	*ServicePort
	// Candidates are the endpoints with this port in all slices, within the limits of slices and pairs, sorted by
	// address.
	Candidates []Candidate
	// UsesCluster and UsesLocal report whether any frontend needs endpoints of policy Cluster and of policy Local.
	UsesCluster, UsesLocal bool
	// Why is the reason why the port has no candidates; empty if it has some.
	Why string
}

// Candidate is one endpoint of one slice.
type Candidate struct {
	// Addr is the zero AddrPort if the endpoint has no usable address.
	Addr netip.AddrPort
	// Slice is the name of the EndpointSlice. Node is the name of the endpoint's node.
	Slice, Node, Zone string
	// Ready, Serving and Terminating are the conditions of the endpoint. OnThisNode is true if the endpoint is on this
	// node.
	Ready, Serving, Terminating, OnThisNode bool
	// Weight is 1 unless an annotation of the slice has another one.
	Weight uint16
	// NotCluster and NotLocal are the reasons why policy Cluster and policy Local do not use the endpoint. A reason is
	// empty if the policy uses the endpoint.
	NotCluster, NotLocal string
}

// Explain returns the result of Build with reasons, or nil if Build returns nil. If no limit is exceeded, the endpoints
// of each policy in use are exactly the candidates without a reason against this policy.
func Explain(o Objects, node Node, opts Options) *Explanation {
	b := construct(o, node, opts)
	if b == nil {
		return nil
	}
	notes := slices.Concat(exposureNotes(b), redirectNotes(b, o.Redirect), loadBalancerNotes(o.Service),
		terminationNotes(o.Service, b.out), timeoutsNotes(b), forwardingNotes(b))
	x := explainer{builder: b, slices: o.Slices, out: &Explanation{Service: b.out, Notes: notes}}
	for i := range b.out.Ports {
		x.out.Ports = append(x.out.Ports, x.port(i))
	}
	for _, s := range o.Slices {
		x.others(s)
	}
	slices.SortStableFunc(x.out.Others, compareCandidates)
	return x.out
}

// explainer is the working memory of one Explain.
type explainer struct {
	*builder
	slices []*Slice
	out    *Explanation
	// summaries holds the result of summarize for each family, or nil.
	summaries [2]*summary
}

// others adds the endpoints of a slice that no port can use.
func (x *explainer) others(s *Slice) {
	add := func(e *Endpoint, why string) {
		c := candidateOf(x.node.endpoint(s, e, 0))
		c.NotCluster, c.NotLocal = why, why
		x.out.Others = append(x.out.Others, c)
	}
	why := x.unread[s]
	if why != "" {
		for i := range s.Endpoints {
			add(&s.Endpoints[i], why)
		}
	}
	for i := range s.Unusable {
		u := &s.Unusable[i]
		add(&u.Endpoint, cmp.Or(why, u.why()))
	}
}

func candidateOf(e endpoint) Candidate {
	at, has := e.of.at.Value(), e.of.conditions.has
	return Candidate{
		Addr: e.AddrPort, Slice: e.slice.Name.Name, Node: at.node, Zone: at.zone, Weight: e.of.weight,
		Ready: has(ready), Serving: has(serving), Terminating: has(terminating), OnThisNode: e.has(local),
	}
}

// port explains a service port, by its index.
func (x *explainer) port(i int) PortExplanation {
	sp, s := x.out.Service.Ports[i], &x.selections[i]
	out := PortExplanation{ServicePort: sp}
	out.UsesCluster, out.UsesLocal = sp.policies()
	if len(s.endpoints) == 0 {
		if sp.Ranged() { // ranges of ports have the endpoints of the first port of their family
			sp = x.out.Service.Ports[firstPort(x.out.Service.Ports, sp)]
		}
		out.Why = x.whyNone(sp)
		return out
	}
	for _, e := range s.endpoints {
		c := candidateOf(e)
		c.NotCluster, c.NotLocal = x.lack(&e, s.forCluster&^e.traits), x.lack(&e, s.forLocal&^e.traits)
		out.Candidates = append(out.Candidates, c)
	}
	for _, e := range s.unused {
		c := candidateOf(e)
		at, isDuplicate := search(s.endpoints, e.AddrPort)
		switch {
		case !isDuplicate:
			c.NotCluster = cmp.Or(x.lack(&e, s.forCluster&^e.traits), aboveLimit)
			c.NotLocal = cmp.Or(x.lack(&e, s.forLocal&^e.traits), aboveLimit)
		case s.endpoints[at].traits != e.traits || s.endpoints[at].of.weight != e.of.weight:
			c.NotCluster = "duplicate: the same address and port exist a second time, " + states(s.endpoints[at].traits)
			c.NotLocal = c.NotCluster
		default: // the same in two slices
			c.NotCluster, c.NotLocal = x.lack(&e, s.forCluster&^e.traits), x.lack(&e, s.forLocal&^e.traits)
		}
		out.Candidates = append(out.Candidates, c)
	}
	slices.SortStableFunc(out.Candidates, compareCandidates)
	return out
}

// aboveLimit is the reason for an endpoint that only a limit excludes.
const aboveLimit = "the Service exceeds a limit (see its problems)"

// states names an endpoint's conditions.
func states(t traits) string {
	switch {
	case t.has(terminating | serving):
		return "terminating and still serving"
	case t.has(terminating):
		return "terminating"
	case t.has(ready):
		return "ready"
	}
	return "not ready"
}

// lack returns the most important of the traits that a policy demands, and an endpoint lacks, as text. It returns an
// empty string if and only if the endpoint lacks none.
func (x *explainer) lack(e *endpoint, lacks traits) string {
	at := e.of.at.Value()
	switch {
	case lacks == 0:
		return ""
	case lacks.has(local) && at.node == "":
		return "its EndpointSlice has no node name for it"
	case lacks.has(local):
		return "not on this node, but on " + at.node
	case e.of.weight == 0:
		return "its weight is 0: it gets no new connections"
	case e.has(passive | redirected):
		return "not ready, and only ready endpoints of Service " + x.redirect + " precede the Service's own ones"
	case e.has(passive):
		return "the annotation " + annotationRedirect + " prefers the endpoints of Service " + x.redirect +
			" on this node"
	case lacks.has(ready) && e.has(terminating):
		return "terminating (other endpoints are ready)"
	case lacks.has(serving) && e.has(terminating):
		return "terminating, and not serving any more"
	case lacks&(ready|serving|terminating) != 0:
		return "not ready (the pod's readiness probe or a readiness gate says so)"
	case lacks.has(thisNodeHint):
		return "hinted to other nodes (" + strings.Join(names(at.hints.nodes), ", ") + ")"
	}
	return "hinted to other zones (" + strings.Join(names(at.hints.zones), ", ") + "; this node is in " + x.node.Zone + ")"
}

// summary summarizes the slices of a family. It explains why a service port has no endpoints.
type summary struct {
	// here is true if the family has slices. elsewhere is true if slices of another address type have endpoints.
	here, elsewhere bool
	// endpoints is the number of endpoints of the family.
	endpoints int
	// names are the names of the slices' ports.
	names []string
}

const mostNames = 20

func (x *explainer) summarize(f inet.Family) *summary {
	if x.summaries[f] != nil {
		return x.summaries[f]
	}
	n := &summary{}
	for _, s := range x.slices {
		if family, ok := familyNamed(s.AddressType); !ok || family != f {
			n.elsewhere = n.elsewhere || s.Len() > 0
			continue
		}
		n.here = true
		n.endpoints += s.Len()
		for i := range s.Ports {
			if protocol, _, reason := checkPort(&s.Ports[i]); reason == "" {
				n.names = append(n.names, quotedName(*s.Ports[i].Name)+"/"+protocol.String())
			}
		}
	}
	slices.Sort(n.names)
	n.names = slices.Compact(n.names)
	x.summaries[f] = n
	return n
}

// The causes of a Service without endpoints, if its selector is unknown, if it has one, and if it has none. The model
// does not store selectors.
const (
	WhyUnknownSelector = "its selector matches no pod, or it has no selector and needs an EndpointSlice made by hand"
	WhySelector        = "its selector matches no pod"
	WhyNoSelector      = "it has no selector and needs an EndpointSlice made by hand"
)

// whyNone returns the reason why a service port has no endpoints in any slice.
func (x *explainer) whyNone(sp *ServicePort) string {
	n := x.summarize(sp.Family)
	wanted := quotedName(sp.Name.Port) + "/" + sp.Protocol.String()
	switch {
	case n.elsewhere && n.endpoints == 0:
		return "its EndpointSlices have endpoints of another IP family only: its pods have no " + sp.Family.String() +
			" address, or it has the wrong ipFamilies"
	case !n.here:
		return "there is no EndpointSlice of " + sp.Family.String() + " for it: " + WhyUnknownSelector
	case n.endpoints == 0:
		return "its EndpointSlices have no " + sp.Family.String() + " address: " + WhyUnknownSelector
	case len(n.names) == 0:
		return "its EndpointSlices have no port: no container port of the pods matches the targetPort of the Service"
	case slices.Contains(n.names, wanted):
		return "its EndpointSlices have this port, but no endpoint that can be used; the reason is beside each endpoint"
	}
	names := n.names
	if more := len(names) - mostNames; more > 0 {
		names = append(slices.Clone(names[:mostNames]), fmt.Sprintf("and %d more", more))
	}
	return "no EndpointSlice with endpoints has a port named " + wanted + "; the slices have " + strings.Join(names, ", ")
}

func quotedName(s string) string { return `"` + s + `"` }

func compareCandidates(a, b Candidate) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	return strings.Compare(a.Slice, b.Slice)
}

// exposureNotes returns a note if annotations leave out frontends of the Service on this node.
func exposureNotes(b *builder) (notes []string) {
	refuse := "; its cluster IPs refuse connections"
	switch {
	case b.elsewhere:
		notes = append(notes, "the labels of this node do not match the Service's annotation "+
			annotationNodeSelector+" or "+annotationNode+", so only other nodes serve the Service"+refuse)
	case b.exposed != "":
		if b.exposes(corev1.ServiceTypeClusterIP) {
			refuse = ""
		}
		notes = append(notes, fmt.Sprintf("the annotation service.cilium.io/type limits the Service to %s addresses and "+
			"external IPs%s", b.exposed, refuse))
	}
	return notes
}

// redirectNotes returns a note if the Service has a local redirect, but no port of any family uses it.
func redirectNotes(b *builder, list []*Slice) []string {
	active := slices.ContainsFunc(b.groups[:len(b.out.Ports)], func(g group) bool {
		return slices.ContainsFunc(g.endpoints, func(e endpoint) bool { return e.has(redirected | ready) })
	})
	why := "has no ready endpoint on this node with the name and protocol of a port of this Service"
	switch {
	case b.redirect == "" || active:
		return nil
	case len(list) == 0:
		why = "does not exist in this namespace, is headless, or has no EndpointSlice"
	}
	return []string{"it has its own endpoints, because the Service " + b.redirect + " of its annotation " +
		annotationRedirect + " " + why}
}

// loadBalancerNotes returns a note for each load-balancer address that is not served, or one note if there is no
// address yet.
func loadBalancerNotes(svc *corev1.Service) (notes []string) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return []string{"it has no load balancer yet: status.loadBalancer is empty; " +
			"a load-balancer controller must assign an address"}
	}
	for _, ing := range svc.Status.LoadBalancer.Ingress {
		switch {
		case ing.IP == "":
			notes = append(notes, "its load balancer has a name, not an address, and sends traffic to the node ports")
		case ing.IPMode != nil && *ing.IPMode != corev1.LoadBalancerIPModeVIP:
			notes = append(notes, fmt.Sprintf("%s is not served here (its ipMode is %s): packets to it, also from pods, "+
				"reach the load balancer, which sends traffic to the node ports", ing.IP, *ing.IPMode))
		}
	}
	return notes
}

// terminationNotes returns a note if connections of the Service are terminated.
func terminationNotes(svc *corev1.Service, built *Service) []string {
	if !built.TerminateGone {
		return nil
	}
	by := "--terminate-connections"
	if _, given := svc.Annotations[annotationTerminate]; given {
		by = "its annotation " + annotationTerminate
	}
	notes := []string{"TCP connections to endpoints that leave all its EndpointSlices are terminated after 5 s, " +
		"because of " + by}
	if built.SpreadSilent > 0 {
		notes = append(notes, fmt.Sprintf("after it gets more endpoints, TCP connections without a segment for %v s may "+
			"end, because of its annotation %s", built.SpreadSilent.Seconds(), annotationSpread))
	}
	return notes
}
