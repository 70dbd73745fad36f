package oracle

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The sentences of docs/port-ranges.md.

// rangesName is the name of the service ports with ranges.
const rangesName = "*"

// ports are the ports from first to last of a protocol.
type ports struct {
	protocol    corev1.Protocol
	first, last int
}

// rangeClaim is a claim to all ports of a range at an address.
type rangeClaim struct {
	claim
	ports
}

// rangePlace is an address and a protocol.
type rangePlace struct {
	addr     netip.Addr
	protocol corev1.Protocol
}

var rangeItem = regexp.MustCompile(`^(?i:(tcp|udp|sctp))/([0-9]{1,5})(?:-([0-9]{1,5}))?$`)

// portRanges returns the ranges of a Service, in order: none if an item is invalid. Ranges that overlap or touch are one range.
func portRanges(s *corev1.Service) (list []ports) {
	text, given := s.Annotations["kube-nftproxy.io/port-ranges"]
	if !given && s.Annotations["networking.cozystack.io/wholeIP"] == "true" {
		text = "all"
	}
	if most, _ := maximum(s); most > 0 || len(s.Spec.Ports) == 0 {
		return nil
	}
	if strings.TrimSpace(text) == "all" {
		text = "tcp/1-65535,udp/1-65535,sctp/1-65535"
	}
	for _, item := range strings.Split(text, ",") {
		m := rangeItem.FindStringSubmatch(strings.TrimSpace(item))
		if m == nil {
			return nil
		}
		first, err1 := strconv.Atoi(m[2])
		last, err2 := strconv.Atoi(cmp.Or(m[3], m[2]))
		if err1 != nil || err2 != nil || first < 1 || last < first || last > 65535 {
			return nil
		}
		list = append(list, ports{corev1.Protocol(strings.ToUpper(m[1])), first, last})
	}
	slices.SortFunc(list, func(a, b ports) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first))
	})
	for i := len(list) - 1; i > 0; i-- {
		if a, b := &list[i-1], list[i]; a.protocol == b.protocol && b.first <= a.last+1 {
			a.last = max(a.last, b.last)
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

// readRanges adds a Service's claims to ranges, for [Oracle.settleRanges]: at its cluster IPs, external IPs and load-balancer IPs, but not at the primary address of the Node.
func (r *Oracle) readRanges(s *corev1.Service, fronts []front) {
	seen := map[netip.Addr]bool{}
	list := portRanges(s)
	for _, f := range fronts {
		if seen[f.addr] || slices.Contains(r.primary, f.addr) {
			continue
		}
		seen[f.addr] = true
		for _, p := range list {
			c := f.claim
			c.port = &corev1.ServicePort{Name: rangesName, Protocol: p.protocol}
			of := key(s, c.port, f.addr.Is6())
			r.affinities[of], r.firstPorts[of] = affinity(s), key(s, &s.Spec.Ports[0], f.addr.Is6())
			at := rangePlace{f.addr, p.protocol}
			r.ranges[at] = append(r.ranges[at], rangeClaim{c, p})
		}
	}
}

// settleRanges decides conflicts: as with single ports, the better claim has its range. Ranges that overlap it are not served.
func (r *Oracle) settleRanges() {
	for at, list := range r.ranges {
		slices.SortFunc(list, func(a, b rangeClaim) int {
			switch {
			case a.service == b.service:
				return cmp.Compare(a.first, b.first)
			case a.before(b.claim):
				return -1
			}
			return 1
		})
		var served []rangeClaim
		for _, c := range list {
			if !slices.ContainsFunc(served, func(d rangeClaim) bool { return c.first <= d.last && d.first <= c.last }) {
				served = append(served, c)
			}
		}
		r.ranges[at] = served
	}
}

// settleSinglePorts decides conflicts between single ports and ranges of two Services: the better claim has the port.
// If two Services have one cluster IP, which the API server prevents, single ports take precedence.
func (r *Oracle) settleSinglePorts() {
	for t, c := range r.claims {
		p := Packet{To: netip.AddrPortFrom(t.addr, t.port), Protocol: t.protocol}
		if in, found := r.inRange(p); found && !c.allocated && in.service != c.service && in.before(c) {
			delete(r.claims, t)
		}
	}
}

// inRange returns the claim to a range with a packet's port.
func (r *Oracle) inRange(p Packet) (claim, bool) {
	for _, c := range r.ranges[rangePlace{p.To.Addr(), p.Protocol}] {
		if port := int(p.To.Port()); c.first <= port && port <= c.last {
			return c.claim, true
		}
	}
	return claim{}, false
}

// listOf returns the endpoints of a service port. Those of ranges are the addresses of the endpoints of the Service's first port, with port 0: of an
// address with several ports, the most usable endpoint, else that of the smallest port.
func (r *Oracle) listOf(key string) (list []endpoint) {
	first, ranged := r.firstPorts[key]
	if !ranged {
		return r.endpoints[key]
	}
	tier := func(e endpoint) int {
		switch {
		case e.ready:
			return 0
		case e.serving && e.terminating:
			return 1
		}
		return 2
	}
	for _, e := range unique(r.endpoints[first]) {
		e.addr = netip.AddrPortFrom(e.addr.Addr(), 0)
		switch n := len(list) - 1; {
		case n < 0 || list[n].addr != e.addr:
			list = append(list, e)
		case tier(e) < tier(list[n]):
			list[n] = e
		}
	}
	return list
}

// ranged reports whether a claim is for ranges.
func (c claim) ranged() bool { return c.port.Name == rangesName }

// at returns an endpoint as a packet reaches it: with ranges, the port is kept.
func (c claim) at(e netip.AddrPort, p Packet) netip.AddrPort {
	if c.ranged() {
		return netip.AddrPortFrom(e.Addr(), p.To.Port())
	}
	return e
}
