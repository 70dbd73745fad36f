package model

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/printable"
)

// Objects are a Service and its EndpointSlices, as the program stores them. They never change: do not write to them.
type Objects struct {
	// Service has only the fields that the program reads. It is nil if the Service does not exist.
	Service *corev1.Service
	// Slices are in the order of their names. Redirect are those of the Service that [RedirectAnnotation] names.
	Slices, Redirect []*Slice
	// ExcessRedirect is true if [MostRedirects] older Services name the same Service. Redirect is then empty.
	ExcessRedirect bool
	// Pod is not nil if the Service and the slices stand for the host ports of a pod.
	Pod *corev1.Pod
}

// Age returns the age of the Service; the zero Age if it does not exist.
func (o Objects) Age() (a Age) {
	if s := o.Service; s != nil {
		a = Age{s.CreationTimestamp.Unix(), string(s.UID)}
	}
	return a
}

// Size estimates the number of elements that the kernel needs for the objects, and the work to read them: a port of a
// slice counts even without endpoints.
func (o Objects) Size() (n int) {
	const bytesPerElement = 16 // in the text of an annotation
	if s := o.Service; s != nil {
		n = len(s.Spec.Ports) * (1 + len(s.Spec.ExternalIPs) + len(s.Status.LoadBalancer.Ingress))
		n += len(s.Spec.LoadBalancerSourceRanges)
		for _, text := range s.Annotations {
			n += len(text) / bytesPerElement
		}
	}
	for _, list := range [...][]*Slice{o.Slices, o.Redirect} {
		for _, s := range list {
			n += max(1, len(s.Ports)) * max(1, s.Len())
		}
	}
	return n
}

// Slice has the fields of an EndpointSlice that the program reads, within the limits. It never changes.
type Slice struct {
	Name        types.NamespacedName
	AddressType discoveryv1.AddressType
	Ports       []discoveryv1.EndpointPort
	// Annotations are those of the slice that the program knows.
	Annotations map[string]string
	// Endpoints have a usable address, and are sorted by it. Unusable are the other endpoints, in the order of the
	// object.
	Endpoints []Endpoint
	Unusable  []UnusableEndpoint
	// Pods are the names of the pods at these addresses, if the source stores them.
	Pods map[netip.Addr]string

	// problems are those of the annotations; nil without annotations. overHints is the number of endpoints with more
	// hints than the limit.
	problems  *problems
	overHints int
}

// Endpoint is an endpoint of a slice.
type Endpoint struct {
	Addr       netip.Addr
	at         unique.Handle[location] // many endpoints share it
	weight     uint16
	conditions traits // ready, serving and terminating
}

// location are the names of an endpoint's node and zone, and its hints. Absent names are empty.
type location struct {
	node, zone string
	hints      hints
}

// Node returns the name of the node of the endpoint.
func (e *Endpoint) Node() string { return e.at.Value().node }

// Zone returns the name of the zone of the endpoint.
func (e *Endpoint) Zone() string { return e.at.Value().zone }

// UnusableEndpoint is an endpoint without a usable address.
type UnusableEndpoint struct {
	Endpoint
	// index is the index in the list of the object.
	index int
	// text is the first address, if the endpoint has one.
	text, reason string
}

const noAddress = "has no address"

// hints are the names of zones and of nodes in the hints of an endpoint. There is a line break before and after each
// name.
type hints struct{ zones, nodes string }

// Stored selects fields of an EndpointSlice that only some sources store: the zones of endpoints, which only counters
// of endpoints need, and the names of pods, for which commands query the API server if there is one.
type Stored struct{ Zones, Pods bool }

// NewSlice returns the slice with the stored fields of an EndpointSlice, within limits. If the object has more, the
// slice has one item above the limit, so that [Build] reports it.
func NewSlice(s *discoveryv1.EndpointSlice, l Limits, stored Stored) *Slice {
	l = l.OrDefault()
	out := &Slice{
		Name:        types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
		AddressType: discoveryv1.AddressType(Cut(string(s.AddressType), LongestText)),
	}
	for _, p := range s.Ports[:min(len(s.Ports), l.SlicePorts+1)] {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: cut(p.Name), Protocol: cut(p.Protocol), Port: p.Port})
	}
	weights := sliceWeights{others: 1}
	if len(s.Annotations) > 0 {
		out.Annotations = StoredAnnotations(s.Annotations, true)
	}
	if len(out.Annotations) > 0 {
		out.readWeights(&weights, &l)
	}
	f, known := familyNamed(out.AddressType)
	list := s.Endpoints[:min(len(s.Endpoints), l.Pairs+1)]
	for i := range list {
		in := &list[i]
		e := newEndpoint(in, stored.Zones)
		if in.Hints != nil && max(len(in.Hints.ForZones), len(in.Hints.ForNodes)) > MostHints {
			out.overHints++
		}
		u := UnusableEndpoint{Endpoint: e, index: i, reason: noAddress}
		if len(in.Addresses) > 0 {
			u.text = Cut(in.Addresses[0], LongestText)
			e.Addr, u.reason = addressOf(u.text, f)
		}
		if !known || u.reason != "" {
			out.Unusable = append(out.Unusable, u)
			continue
		}
		e.weight = weights.others
		if own, has := weights.own[e.Addr]; has {
			e.weight = own
		}
		if out.Endpoints == nil {
			out.Endpoints = make([]Endpoint, 0, len(list)-i)
		}
		out.Endpoints = append(out.Endpoints, e)
		if pod := in.TargetRef; stored.Pods && pod != nil && pod.Kind == "Pod" {
			if out.Pods == nil {
				out.Pods = map[netip.Addr]string{}
			}
			out.Pods[e.Addr] = Cut(pod.Name, LongestText)
		}
	}
	slices.SortStableFunc(out.Endpoints, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return out
}

// newEndpoint reads a missing condition as ready, serving and not terminating, as the API defines.
func newEndpoint(in *discoveryv1.Endpoint, zone bool) Endpoint {
	var at location
	if in.NodeName != nil {
		at.node = Cut(*in.NodeName, LongestText)
	}
	if zone && in.Zone != nil {
		at.zone = Cut(*in.Zone, LongestText)
	}
	if h := in.Hints; h != nil {
		at.hints.zones = lines(h.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
		at.hints.nodes = lines(h.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
	}
	e := Endpoint{at: unique.Make(at), weight: 1}
	if c := in.Conditions.Ready; c == nil || *c {
		e.conditions |= ready
	}
	if c := in.Conditions.Serving; c == nil || *c {
		e.conditions |= serving
	}
	if c := in.Conditions.Terminating; c != nil && *c {
		e.conditions |= terminating
	}
	return e
}

// cut returns a copy of a text, cut at the limit.
func cut[T ~string](text *T) *T {
	if text == nil {
		return nil
	}
	return new(T(unique.Make(Cut(string(*text), LongestText)).Value()))
}

// lines returns the text with the names of a list of hints.
func lines[T any](list []T, name func(T) string) string {
	var b strings.Builder
	for i, item := range list[:min(len(list), MostHints)] {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.WriteString(Cut(name(item), LongestText))
		b.WriteByte('\n')
	}
	return b.String()
}

// names returns the names in the text of lines.
func names(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text[1:len(text)-1], "\n")
}

// addressOf returns an address of a slice of a family, or the reason why it is not usable. As in kube-proxy, an
// endpoint has only its first address. The API lets a consumer use any of the addresses. Loopback and link-local
// addresses, which the API server rejects, would lead to this node and its neighbours.
func addressOf(text string, f inet.Family) (addr netip.Addr, reason string) {
	addr, reason = parseDestination(text)
	switch {
	case reason != "":
	case inet.FamilyOf(addr) != f:
		reason = ofOtherFamily[f]
	case addr.IsLinkLocalUnicast():
		reason = "is a link-local address"
	}
	return addr, reason
}

// ofOtherFamily are the reasons why an address in a slice of a family is not used.
var ofOtherFamily = [...]string{
	inet.IPv4: "not an IPv4 address, as addressType says",
	inet.IPv6: "not an IPv6 address, as addressType says",
}

// why returns the reason why the endpoint is not usable, with its address.
func (u *UnusableEndpoint) why() string {
	if u.reason == noAddress {
		return u.reason
	}
	return quoted(u.text, u.reason)
}

// Len returns the number of endpoints, usable or not.
func (s *Slice) Len() int { return len(s.Endpoints) + len(s.Unusable) }

// HasPort reports whether the slice has a port with this number, or whether the number is 0.
func (s *Slice) HasPort(port uint16) bool {
	return port == 0 || slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && *p.Port == int32(port)
	})
}

// Equal reports whether two slices have the same content.
func (s *Slice) Equal(o *Slice) bool {
	samePort := func(a, b discoveryv1.EndpointPort) bool {
		return same(a.Name, b.Name) && same(a.Protocol, b.Protocol) && same(a.Port, b.Port)
	}
	return s.Name == o.Name && s.AddressType == o.AddressType && s.overHints == o.overHints &&
		slices.Equal(s.Endpoints, o.Endpoints) && slices.Equal(s.Unusable, o.Unusable) &&
		slices.EqualFunc(s.Ports, o.Ports, samePort) && maps.Equal(s.Annotations, o.Annotations) && maps.Equal(s.Pods, o.Pods)
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Object returns an EndpointSlice with the fields of the slice. [NewSlice] makes the same slice from it.
func (s *Slice) Object(service string) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Name.Namespace, Name: s.Name.Name, Annotations: s.Annotations,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: s.AddressType, Ports: s.Ports, Endpoints: make([]discoveryv1.Endpoint, 0, s.Len()),
	}
	for i := range s.Endpoints {
		out.Endpoints = append(out.Endpoints, s.Endpoints[i].object(s.Endpoints[i].Addr.String()))
	}
	for i := range s.Unusable {
		u := &s.Unusable[i]
		e := u.object(u.text)
		if u.reason == noAddress {
			e.Addresses = nil
		}
		out.Endpoints = slices.Insert(out.Endpoints, min(u.index, len(out.Endpoints)), e)
	}
	return out
}

func (e *Endpoint) object(address string) discoveryv1.Endpoint {
	has := func(t traits) *bool { return new(e.conditions.has(t)) }
	out := discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: has(ready), Serving: has(serving), Terminating: has(terminating)},
	}
	at := e.at.Value()
	if at.node != "" {
		out.NodeName = &at.node
	}
	if at.zone != "" {
		out.Zone = &at.zone
	}
	if h := at.hints; h != (hints{}) {
		out.Hints = &discoveryv1.EndpointHints{}
		for _, name := range names(h.zones) {
			out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone{Name: name})
		}
		for _, name := range names(h.nodes) {
			out.Hints.ForNodes = append(out.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
	}
	return out
}

// longestZone is the length in bytes of the longest zone, the limit of a label's value. Longer zones are truncated.
const longestZone = 63

// Zones returns the zones of the endpoints of slices, by address; "" for an endpoint without one. Slices are those of
// one Service. The texts are printable: the API server does not validate zones, and metrics show them.
func Zones(slices []*Slice) map[netip.Addr]string {
	zones := map[netip.Addr]string{}
	for _, s := range slices {
		for i := range s.Endpoints {
			zone := s.Endpoints[i].Zone()
			zones[s.Endpoints[i].Addr] = printable.Text(zone[:min(len(zone), longestZone)])
		}
	}
	return zones
}

// maxEndpointProblems is the number of invalid endpoints of one slice with a problem of their own. Further ones are
// only counted.
const maxEndpointProblems = 3

// sliceReader reads one slice.
type sliceReader struct {
	b *builder
	s *Slice
	problems
}

// parts returns a part for each usable port of the slice that matches a port of the Service. It returns one part for
// all other usable ports together. If there is no usable port, it records the reason for [Explain]. An empty list of
// ports is valid: the EndpointSlice controller writes it if no pod has the named target port.
func (r *sliceReader) parts(groupAt map[groupKey]int) (parts []part) {
	f, known := familyNamed(r.s.AddressType)
	switch {
	case !known:
		r.problem("addressType", quoted(string(r.s.AddressType), "not IPv4 or IPv6"))
		r.unread("the slice's address type " + string(r.s.AddressType) + " is not one of IP")
		return nil
	case !r.b.cluster[f].IsValid():
		r.unread("the Service has no " + f.String() + " cluster IP")
		return nil
	}
	n, most := len(r.s.Ports), r.b.limits.SlicePorts
	if n > most {
		r.reportExcess(limitSlicePorts, "ports", 0, most,
			fmt.Sprintf("ports from %s on are not used", index("ports", most)), "divide the Service")
	}
	unusable := "its slice has no port: no container port of the pod matches the targetPort of the Service"
	others, hasOthers := len(r.b.groups)-1, false
	for i := range r.s.Ports[:min(n, most)] {
		p := &r.s.Ports[i]
		protocol, field, reason := checkPort(p)
		if reason != "" {
			if n == 1 {
				unusable = index("its slice's ports", i) + field + " " + reason
			}
			if !r.full() {
				r.problem(index("ports", i)+field, reason)
			}
			continue
		}
		if at, found := groupAt[groupKey{family: f, protocol: protocol, name: *p.Name}]; found {
			parts = append(parts, part{group: at, port: uint16(*p.Port)})
		} else {
			hasOthers = true
		}
	}
	if hasOthers {
		return append(parts, part{group: others})
	}
	if len(parts) == 0 {
		r.unread(unusable)
		if r.b.out.TerminateGone {
			return []part{{group: others, portless: true}}
		}
	}
	return parts
}

// unread records that no port of the slice is usable.
func (r *sliceReader) unread(why string) {
	if r.b.unread == nil {
		r.b.unread = map[*Slice]string{}
	}
	r.b.unread[r.s] = why
}

// checkPort returns the protocol of a slice's port, or the invalid field and the reason.
func checkPort(p *discoveryv1.EndpointPort) (protocol inet.Protocol, field, reason string) {
	if p.Name == nil {
		return 0, ".name", "is missing"
	}
	if p.Port == nil {
		return 0, ".port", "is missing; a slice for all ports is not supported"
	}
	if _, ok := portNumber(*p.Port); !ok {
		return 0, ".port", fmt.Sprintf("%d is not a port", *p.Port)
	}
	name := corev1.ProtocolTCP
	if p.Protocol != nil {
		name = *p.Protocol
	}
	protocol, ok := protocolOf(name)
	if !ok {
		return 0, ".protocol", quoted(string(name), "not TCP, UDP or SCTP")
	}
	return protocol, "", ""
}

// reportEndpoints adds the problems of the annotations and the endpoints.
func (r *sliceReader) reportEndpoints() {
	if p := r.s.problems; p != nil {
		for _, problem := range p.list {
			r.add(problem)
		}
		r.more += p.more
	}
	for i := range r.s.Unusable[:min(len(r.s.Unusable), maxEndpointProblems)] {
		u := &r.s.Unusable[i]
		r.problem(index("endpoints", u.index)+".addresses", u.why())
	}
	if more := len(r.s.Unusable) - maxEndpointProblems; more > 0 {
		r.problem("endpoints", fmt.Sprintf("%d more have no usable address", more))
	}
	if n := r.s.overHints; n > 0 {
		r.reportExcess(limitHints, "endpoints", 0, MostHints,
			fmt.Sprintf("the hints of %d endpoints are used only in part", n), "use fewer hints")
	}
}
