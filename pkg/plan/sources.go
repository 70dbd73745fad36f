package plan

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// A Service has up to four lists of source ranges in each family. All have the Service's number for source ranges. The
// chain firewall serves load-balancer IPs without denied sources. For all other frontends with source ranges, each kind
// has a chain that the plan contains while a Service uses it:
//
//	firewall-denied        a load-balancer IP: drops denied sources, then firewall
//	firewall-external-ips  drops denied sources, and sources that are not allowed
//	firewall-node-ports    the same
//
// Port ranges have the chains range-firewall and range-firewall-external-ips, which look up both the denied and the
// allowed sources.

// sourceList is one of the lists of source ranges of a Service. The allowed sources of each kind of frontends precede
// the denied sources.
type sourceList uint8

const (
	balancerSources sourceList = iota
	externalIPSources
	nodePortSources
	deniedSources
	sourceLists
)

// sourceText has the names and words of a list.
type sourceText struct {
	// set is the name of the set with these lists of all Services. field is the field of a Service with the list, words
	// is the field in a sentence, and path is its path in the object.
	set, field, words, path string
	// comment is the comment of the chain for a kind of frontends with such a list, or with denied sources.
	comment string
}

var sourceTexts = [sourceLists]sourceText{
	balancerSources: {"allowed-sources", "loadBalancerSourceRanges", "loadBalancerSourceRanges",
		model.BalancerSourcesField, "load-balancer address with denied source ranges"},
	externalIPSources: {"allowed-sources-external-ips",
		"source ranges of external IPs", "the source ranges of external IPs", model.ExternalIPSourcesField,
		"external IP with source ranges"},
	nodePortSources: {"allowed-sources-node-ports", "source ranges of node ports", "the source ranges of node ports",
		model.NodePortSourcesField, "node port with source ranges"},
	deniedSources: {"denied-sources", "denied source ranges", "the denied source ranges", model.DeniedSourcesField, ""},
}

// HasSources reports whether a set has source ranges, by its name.
func HasSources(s *nft.Set) bool {
	return slices.ContainsFunc(sourceTexts[:], func(t sourceText) bool { return t.set == s.Name })
}

// listFor returns the list with the allowed sources of a frontend other than a cluster IP.
func listFor(f *model.Frontend) sourceList {
	switch f.Kind {
	case model.NodePort:
		return nodePortSources
	case model.ExternalIP:
		return externalIPSources
	}
	return balancerSources
}

// firewallOf returns the class of a frontend with source ranges for packets whose source is not known to be allowed.
func firewallOf(f *model.Frontend) class {
	if f.Last != 0 {
		return class{kind: kindRangeSources, of: uint8(listFor(f))}
	}
	if list := listFor(f); list != balancerSources || f.Sources.Denied != nil {
		return class{kind: kindSources, of: uint8(list)}
	}
	return class{kind: kindFirewall}
}

// restricts reports whether the kind looks up the source of a packet. The number beside the kind then stands for the
// source ranges of a Service.
func (k kind) restricts() bool { return k == kindFirewall || k == kindSources || k == kindRangeSources }

// sourceRules returns the rules of the chain for a kind of frontends.
func (l *layout) sourceRules(list sourceList) []nft.Rule {
	switch list {
	case balancerSources:
		return append(l.denied(), rule("", goTo(nameOf(kindFirewall))))
	case nodePortSources:
		return append(l.denied(), l.allowed(list, key(l.nodePort()...), l.restrictedNodePorts)...)
	}
	return append(l.denied(), l.allowed(list, key(l.vip()...), l.restricted)...)
}

// denied drops packets from denied sources.
func (l *layout) denied() []nft.Rule {
	return []nft.Rule{
		rule("", keepBits(portBits)),
		rule("in "+sourceTexts[deniedSources].words,
			append(l.source(), loadedIn(l.sources[deniedSources], false)), countedDrop()),
	}
}

// allowed drops packets from sources that are not allowed, and finds the class of all other packets by a key of the map
// restricted.
func (l *layout) allowed(list sourceList, key []expr.Any, restricted *nft.Set) []nft.Rule {
	return []nft.Rule{
		rule("not in "+sourceTexts[list].words, append(l.source(), loadedIn(l.sources[list], true)), countedDrop()),
		rule("", setPriority(key, restricted), dispatch(wordBits, l.dispatch[stepAllowed])),
	}
}

// sources are the source ranges of a Service in one family. The tables have them once, regardless of the number of
// addresses and ports.
type sources struct {
	family inet.Family
	// number is 0 if there was no room: then no source is allowed.
	number uint32
	lists  [sourceLists][]model.AddrRange
}

// everywhere are the ranges with all addresses of a family.
var everywhere = [...][]model.AddrRange{
	inet.IPv4: {model.RangeOf(netip.PrefixFrom(inet.Unspecified[inet.IPv4], 0))},
	inet.IPv6: {model.RangeOf(netip.PrefixFrom(inet.Unspecified[inet.IPv6], 0))},
}

// add adds the source ranges of a frontend. All frontends of one kind have the same ranges. If a frontend has only
// denied sources, all other sources are allowed.
func (s *sources) add(f *model.Frontend) {
	list := listFor(f)
	if s.lists[list] = f.Sources.Allowed; f.Sources.Allowed == nil {
		s.lists[list] = everywhere[s.family]
	}
	s.lists[deniedSources] = f.Sources.Denied
}

// sourcesOfService are the source ranges of a Service in each family; nil without any.
type sourcesOfService [2]*sources

// add adds the source ranges of a service port.
func (s *sourcesOfService) add(sp *model.ServicePort) {
	for i := range sp.Frontends {
		if f := &sp.Frontends[i]; f.Sources != nil {
			if s[sp.Family] == nil {
				s[sp.Family] = &sources{family: sp.Family}
			}
			s[sp.Family].add(f)
		}
	}
}

// count is the number of source ranges.
func (s *sources) count() (n int) {
	for _, ranges := range s.lists {
		n += len(ranges)
	}
	return n
}

// sourcesID returns an id for the source ranges of a Service. No service port has this id, because the name of a port
// has no space.
func sourcesID(name types.NamespacedName, f inet.Family) portID {
	return portID{name: model.PortName{NamespacedName: name, Port: " sources"}, family: f}
}

// sourceElements adds an element for every source range.
func (l *layout) sourceElements(s *sources, to *wants) {
	key := nft.Value{}.BigEndian(s.number)
	for list, ranges := range s.lists { // without a number, there are none
		for _, r := range ranges {
			to.own = append(to.own, nft.Element{Set: l.sources[list], Key: key.Addr(r.First), KeyEnd: key.Addr(r.Last)})
		}
	}
}
