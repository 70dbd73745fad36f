package model

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// allPorts is the value of the annotation for all ports of all protocols.
const allPorts = "all"

// RangesPort is the name of the service ports with ranges, one for each protocol. It is not valid as the name of
// another port.
const RangesPort = "*"

// portRange has the ports from first to last of a protocol.
type portRange struct {
	protocol    inet.Protocol
	first, last uint16
}

// Ports returns the ports of a key, such as "80" or "10000-20000".
func (k *Key) Ports() string {
	if k.Last <= k.Port {
		return strconv.Itoa(int(k.Port))
	}
	return fmt.Sprintf("%d-%d", k.Port, k.Last)
}

// Address returns the address and ports of a key, such as "10.96.0.10:80" or "[fd00::1]:10000-20000".
func (k *Key) Address() string {
	at := netip.AddrPortFrom(k.Addr, k.Port).String()
	if k.Last <= k.Port {
		return at
	}
	return fmt.Sprintf("%s-%d", at, k.Last)
}

// Has reports whether a port is among the ports of a key.
func (k *Key) Has(port uint16) bool { return k.Port <= port && port <= max(k.Port, k.Last) }

// setPortRanges sets the ranges of ports. They are sorted, and neither overlap nor touch. If the text is invalid, or
// the Service has a connection limit, setPortRanges sets none.
func (b *builder) setPortRanges(text string) error {
	list, err := b.limits.parsePortRanges(text)
	if err == nil && b.limited() {
		err = errors.New("a connection limit cannot count connections to port ranges")
	}
	if err == nil {
		b.ranges = list
	}
	return err
}

// setWholeIP sets all ports.
func (b *builder) setWholeIP(text string) error {
	if text != "true" {
		return nil
	}
	return b.setPortRanges(allPorts)
}

// portRanges returns the ranges of ports. Above the limit of ranges times addresses, it skips the last ranges.
func (b *builder) portRanges() []portRange {
	list, field := b.ranges, PortRangesField
	if _, own := b.svc.Annotations[annotationPortRanges]; !own {
		field = annotationField(annotationWholeIP)
	}
	addrs := 0
	for _, f := range inet.Families {
		if b.cluster[f].IsValid() {
			addrs += len(b.rangeFronts(f))
			if len(b.rangeFronts(f)) < len(b.fronts[f]) {
				b.problem(field, b.node.IPs[f].String()+
					" is the address of this node: it has no port ranges, so that the node stays reachable")
			}
		}
	}
	if n, most := len(list)*addrs, b.limits.PortRanges; n > most {
		fit := most / addrs
		b.reportExcess(limitPortRanges, field, n, most, fmt.Sprintf("the last %d ranges are not served", len(list)-fit),
			"use fewer, larger ranges, or divide the Service")
		list = list[:fit]
	}
	return list
}

// parsePortRanges parses the value of the annotation, and merges the ranges.
func (l *Limits) parsePortRanges(text string) ([]portRange, error) {
	const mostPort = 1<<16 - 1
	var list []portRange
	if strings.TrimSpace(text) == allPorts {
		for _, p := range inet.Protocols {
			list = append(list, portRange{p, 1, mostPort})
		}
		return list, nil
	}
	items, err := l.itemsOf(text)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		item = strings.TrimSpace(item)
		name, ports, _ := strings.Cut(item, "/")
		from, to, isRange := strings.Cut(ports, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		at := slices.IndexFunc(inet.Protocols[:], func(p inet.Protocol) bool { return strings.EqualFold(p.String(), name) })
		if err != nil || err2 != nil || at < 0 || first < 1 || last < first {
			return nil, fmt.Errorf("%.40q is not a range like udp/10000-20000 or a port like tcp/8000; "+
				"write a comma-separated list of these, or %s", item, allPorts)
		}
		list = append(list, portRange{inet.Protocols[at], uint16(first), uint16(last)})
	}
	place := func(p inet.Protocol) int { return slices.Index(inet.Protocols[:], p) }
	slices.SortFunc(list, func(a, b portRange) int {
		return cmp.Or(cmp.Compare(place(a.protocol), place(b.protocol)), cmp.Compare(a.first, b.first))
	})
	kept := list[:0]
	for _, r := range list {
		if n := len(kept); n > 0 && kept[n-1].protocol == r.protocol && int(r.first) <= int(kept[n-1].last)+1 {
			kept[n-1].last = max(kept[n-1].last, r.last)
			continue
		}
		kept = append(kept, r)
	}
	return kept, nil
}

// rangeFronts returns the frontends of a family that may have ranges: all except frontends at the address of this node.
func (b *builder) rangeFronts(f inet.Family) []Frontend {
	own := func(front Frontend) bool { return front.OnNode }
	if !slices.ContainsFunc(b.fronts[f], own) {
		return b.fronts[f]
	}
	return slices.DeleteFunc(slices.Clone(b.fronts[f]), own)
}

// rangedPorts returns the service ports with the ranges of a family, one for each protocol. They have all other
// properties of the family's first port.
func (b *builder) rangedPorts(first *ServicePort, ranges []portRange) (list []*ServicePort) {
	for _, r := range ranges {
		if n := len(list); n == 0 || list[n-1].Protocol != r.protocol {
			sp := *first
			sp.Name.Port, sp.Protocol, sp.Frontends = RangesPort, r.protocol, nil
			list = append(list, &sp)
		}
		sp := list[len(list)-1]
		for _, front := range b.rangeFronts(first.Family) {
			front.Port, front.Last, front.Protocol = r.first, r.last, r.protocol
			sp.Frontends = append(sp.Frontends, front)
		}
	}
	return list
}

// withoutPorts turns endpoints into addresses, each once with port 0. If endpoints have the same address, it keeps the
// endpoint with the best [traits.tier].
func (s *selection) withoutPorts() {
	var kept []endpoint
	unused := slices.Clone(s.unused)
	for _, e := range s.endpoints {
		e.AddrPort = netip.AddrPortFrom(e.Addr(), 0)
		last := len(kept) - 1
		switch {
		case last < 0 || kept[last].AddrPort != e.AddrPort:
			kept = append(kept, e)
		case e.tier() < kept[last].tier():
			unused = append(unused, kept[last])
			kept[last] = e
		default:
			unused = append(unused, e)
		}
	}
	for i := range unused {
		unused[i].AddrPort = netip.AddrPortFrom(unused[i].Addr(), 0)
	}
	s.endpoints, s.unused = kept, unused
}
