package model

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// noSources, as the value of an annotation with allowed sources, closes a kind of frontends without a problem.
const noSources = "none"

// The values of annotationSourcePolicy.
const (
	ciliumAllow = "allow"
	ciliumDeny  = "deny"
)

// BalancerSourcesField is the path of the field with the allowed sources of load-balancer IPs. Annotations have those
// of other kinds of frontends.
const BalancerSourcesField = "spec.loadBalancerSourceRanges"

// Sources restricts the clients of a frontend by their addresses. The ranges of each list are of the frontend's family,
// sorted, and do not overlap.
type Sources struct {
	// Allowed are the allowed sources (loadBalancerSourceRanges, or the annotation for the frontend's kind): nil admits
	// all, an empty list none.
	Allowed []AddrRange
	// Denied are sources that must not reach the frontend, even if Allowed has them.
	Denied []AddrRange
}

// Admits reports whether a source may reach the frontend. A nil s admits all.
func (s *Sources) Admits(source netip.Addr) bool {
	return s == nil || (s.Allowed == nil || contain(s.Allowed, source)) && !contain(s.Denied, source)
}

// contain reports whether sorted and disjoint ranges contain an address.
func contain(ranges []AddrRange, a netip.Addr) bool {
	// Only the last range that begins at or before the address may contain it.
	after := sort.Search(len(ranges), func(i int) bool { return a.Less(ranges[i].First) })
	return after > 0 && ranges[after-1].Contains(a)
}

// sources are the source ranges of a Service, by kind of frontends and by family.
type sources [NodePort + 1][2]*Sources

// A sourceList is a list of source ranges of both families.
type sourceList struct {
	field  string
	ranges []netip.Prefix
	// closed is true if no source can be allowed.
	closed bool
}

// readSources reads the source ranges of a Service with the given load-balancer IPs and external IPs. If a list of
// denied sources has an error, all frontends except the cluster IP are closed.
func (b *builder) readSources(balancers, external []netip.Addr) (s sources) {
	var allowed [NodePort + 1][2][]AddrRange
	list := b.balancerSources()
	for _, f := range inet.Families {
		allowed[LoadBalancer][f] = b.allowedSources(f, &list, balancers)
	}
	localhost := inet.Localhost[:]
	for _, at := range []struct {
		kind Kind
		own  []netip.Addr
	}{{ExternalIP, external}, {NodePort, localhost}} {
		if list := b.annotated[at.kind]; list != nil {
			for _, f := range inet.Families {
				allowed[at.kind][f] = b.allowedSources(f, list, at.own)
			}
		}
	}
	all := slices.Concat(balancers, external, localhost)
	for _, f := range inet.Families {
		deniedHere := b.deniedSources(f, all)
		for kind := ClusterIP + 1; kind <= NodePort; kind++ {
			if allowed[kind][f] != nil || deniedHere != nil {
				s[kind][f] = &Sources{allowed[kind][f], deniedHere}
			}
		}
	}
	if b.denied.closed {
		closed := &Sources{Allowed: []AddrRange{}}
		s = sources{ExternalIP: {closed, closed}, LoadBalancer: {closed, closed}, NodePort: {closed, closed}}
	}
	return s
}

// setSourcePolicy sets the meaning of spec.loadBalancerSourceRanges.
func (b *builder) setSourcePolicy(policy string) error {
	switch policy {
	case ciliumAllow:
	case ciliumDeny:
		b.deniesBalancers = true
	default:
		b.closesBalancers = true
		b.unlimited = append(b.unlimited, b.problemOf(annotationField(annotationSourcePolicy),
			quoted(policy, "must be "+ciliumAllow+" or "+ciliumDeny+": the load-balancer IPs are closed to all sources")))
	}
	return nil
}

// balancerSources returns the allowed sources in spec.loadBalancerSourceRanges or, with Cilium's annotation, adds them
// to the denied sources. Blank strings are ignored, as in kube-proxy.
func (b *builder) balancerSources() sourceList {
	allowed := sourceList{field: BalancerSourcesField, closed: b.closesBalancers}
	list, invalid := &allowed, 0
	if b.deniesBalancers {
		list = &b.denied
	}
	given := b.svc.Spec.LoadBalancerSourceRanges
	if most := b.limits.Items(); len(given) > most {
		reason := fmt.Sprintf("the list has more than %d items", most)
		if b.deniesBalancers {
			b.cannotDeny(BalancerSourcesField, reason)
		} else {
			allowed.closed = true
			b.unlimited = append(b.unlimited, b.problemOf(BalancerSourcesField,
				reason+": the load-balancer IPs are closed to all sources; use fewer, larger ranges"))
		}
		given = nil
	}
	for i, s := range given {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if err := list.add(s); err != nil {
			b.invalidItem(BalancerSourcesField, i, "", s, err.Error())
			invalid++
		}
	}
	switch {
	case invalid > 0 && b.deniesBalancers:
		b.cannotDeny(BalancerSourcesField, "a range is invalid")
	case invalid > 0 && len(allowed.ranges) == 0 && !b.closesBalancers:
		allowed.closed = true
		b.unlimited = append(b.unlimited, b.problemOf(BalancerSourcesField,
			"no range is valid: the load-balancer IPs are closed to all sources; "+
				"correct the ranges, or leave them out to admit all"))
	}
	return allowed
}

// sourcesFor are the allowed sources of a kind of frontends. An invalid list closes these frontends.
func sourcesFor(kind Kind, field string) Value {
	return Value{
		Values: "CIDRs with commas, or `none`", Samples: []string{noSources, "192.0.2.0/24, 2001:db8::/32", "0.0.0.0/0"},
		Wrong: []string{"", "10.0.0.0/33", "192.0.2.0/24,bad"},
		set: func(b *builder, text string) error {
			b.annotated[kind] = b.annotatedSources(kind, field, text)
			return nil
		},
	}
}

// annotatedSources returns the allowed sources in the annotation for a kind of frontends.
func (b *builder) annotatedSources(kind Kind, field, text string) *sourceList {
	list := &sourceList{field: field}
	if strings.TrimSpace(text) == noSources {
		list.closed = true
		return list
	}
	items, err := b.limits.itemsOf(text)
	if err != nil {
		list.closed = true
		b.unlimited = append(b.unlimited, b.problemOf(list.field,
			fmt.Sprintf("%v: each %s is closed to all sources; use fewer, larger ranges", err, kind)))
		return list
	}
	for _, item := range items {
		b.addItem(list, item)
	}
	if list.closed = len(list.ranges) == 0; list.closed {
		b.unlimited = append(b.unlimited, b.problemOf(list.field,
			fmt.Sprintf("no range is valid: each %s is closed to all sources; "+
				"correct the ranges, use %q, or remove the annotation to admit all", kind, noSources)))
	}
	return list
}

// setDenied sets the denied sources.
func (b *builder) setDenied(text string) error {
	items, err := b.limits.itemsOf(text)
	if err != nil {
		b.cannotDeny(DeniedSourcesField, err.Error())
		return nil
	}
	for _, item := range items {
		if !b.addItem(&b.denied, item) {
			b.cannotDeny(DeniedSourcesField, "a range is invalid")
		}
	}
	return nil
}

// cannotDeny closes all frontends except the cluster IP, because a denied source is unknown. It reports this once.
func (b *builder) cannotDeny(field, reason string) {
	if !b.denied.closed {
		b.unlimited = append(b.unlimited, b.problemOf(field, reason+
			", so the program cannot deny all of these sources: all addresses and node ports of the Service "+
			"except its cluster IPs are closed to all sources; correct the ranges"))
	}
	b.denied.closed = true
}

// addItem adds an item of an annotation, which may be blank, to a list. If it is invalid, addItem adds a problem and
// returns false.
func (b *builder) addItem(list *sourceList, text string) bool {
	if text = strings.TrimSpace(text); text == "" {
		return true
	}
	err := list.add(text)
	if err != nil {
		b.invalid(list.field, text, err.Error())
	}
	return err == nil
}

// add adds a prefix.
func (l *sourceList) add(text string) error {
	prefix, err := parsePrefix(text)
	if err == nil {
		l.ranges = append(l.ranges, prefix)
	}
	return err
}

// allowedSources returns the sources that a list allows for frontends of one kind and family; nil admits all. own are
// the addresses of these frontends, of both families.
//
// If an interface of the node has the address of a frontend, packets from the node to this address have it as their
// source, too. So if the ranges contain the node's address, the result also contains the addresses of the frontends:
// for a node port the loopback address.
func (b *builder) allowedSources(f inet.Family, list *sourceList, own []netip.Addr) []AddrRange {
	if list.closed {
		return []AddrRange{}
	}
	if openToAll(f, list.ranges) {
		return nil
	}
	if own = ofFamily(f, own); len(own) == 0 {
		return nil
	}
	allowed, fromNode := b.prefixes(f, list.ranges)
	n, most := len(allowed), b.limits.SourceRanges
	kept := allowed[:min(n, most):min(n, most)]
	if fromNode {
		both := withAddrs(kept, own)
		if n <= most {
			n = len(both) // a greater n stays, so that the problem is the same on all nodes
		}
		if len(both) > most {
			both = withAddrs(kept, own[:most-len(kept)])
		}
		kept = both
	}
	if n > most {
		b.reportExcess(limitSourceRanges, list.field, n, most,
			fmt.Sprintf("%s sources in the last %d ranges are refused", f, n-most), "use fewer, larger ranges")
	}
	return kept
}

// deniedSources returns the denied sources of one family; nil for none. If they contain the node's address, the result
// also contains own: the addresses with which the node sends to the frontends, see [builder.allowedSources].
func (b *builder) deniedSources(f inet.Family, own []netip.Addr) []AddrRange {
	denied, fromNode := b.prefixes(f, b.denied.ranges)
	if fromNode {
		denied = withAddrs(denied, ofFamily(f, own))
	}
	if n, most := len(denied), b.limits.SourceRanges; n > most {
		b.cannotDeny(DeniedSourcesField, fmt.Sprintf("%d are above the limit of %d %s", n, most, limitSourceRanges))
	}
	if len(denied) == 0 {
		return nil
	}
	return denied
}

// prefixes returns the fewest prefixes that hold the addresses of the ranges of one family, and whether they contain
// this node's address. The list is never nil.
func (b *builder) prefixes(f inet.Family, ranges []netip.Prefix) (list []AddrRange, fromNode bool) {
	for _, r := range ranges {
		if inet.FamilyOf(r.Addr()) == f {
			list = append(list, RangeOf(r))
			fromNode = fromNode || r.Contains(b.node.IPs[f])
		}
	}
	return append([]AddrRange{}, asPrefixes(mergeRanges(list))...), fromNode
}

// ofFamily returns the addresses of one family, sorted.
func ofFamily(f inet.Family, addrs []netip.Addr) []netip.Addr {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return inet.FamilyOf(a) != f })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// withAddrs returns the union of ranges and addresses of one family.
func withAddrs(ranges []AddrRange, addrs []netip.Addr) []AddrRange {
	out := slices.Clone(ranges)
	for _, a := range addrs {
		out = append(out, AddrRange{a, a})
	}
	return asPrefixes(mergeRanges(out))
}

// openToAll reports whether the valid source ranges admit all sources of a family: one range is /0, or no range is of
// this family. As in kube-proxy, a family without ranges is open even if the other family has ranges.
func openToAll(f inet.Family, ranges []netip.Prefix) bool {
	open := true
	for _, r := range ranges {
		if inet.FamilyOf(r.Addr()) != f {
			continue
		}
		if r.Bits() == 0 {
			return true
		}
		open = false
	}
	return open
}
