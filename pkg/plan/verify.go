package plan

import "github.com/kube-nftproxy/kube-nftproxy/pkg/nft"

// Planned reports whether the elements of a set must be those of the plan at each moment. Packets add the elements of some other sets. The set state and the
// set deleted-udp describe the past for the next process.
func Planned(s *nft.Set) bool { return !s.Dynamic && s.Name != StateSet && s.Name != deletedUDPSet }

// FilledByPackets reports whether packets add the elements of the set with this name.
func FilledByPackets(set string) bool {
	return Remembers(set) || set == unusedPortsSet || set == fullSet || set == triedSet || set == HeldSet || set == holdingSet
}

// Remembers reports whether the set with this name has the remembered clients.
func Remembers(set string) bool { return set == affinitySet }

// AddedByPackets returns the element that packets may add as long as the element e exists. It reports false if there is none.
func (p *Planner) AddedByPackets(e *nft.Element) (nft.Element, bool) {
	l := p.layouts[e.Set.Family]
	return nft.Element{Set: l.unusedPorts, Key: e.Key}, e.Set == l.clusterIPs || e.Set == l.refused
}
