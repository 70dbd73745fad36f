package plan

import (
	"fmt"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// The names of the sets that the chain services looks up.
const (
	ServicesSet      = "services"
	NodePortsSet     = "nodeports"
	NodeAddressesSet = "node-addresses"
)

// ChainMeaning describes the chain of a class in words, such as "no endpoints". It returns "" for any other chain.
func ChainMeaning(chain string) string {
	for k := kindReject; !k.numbered(); k++ {
		switch {
		case k.name(selector{}) != chain:
		case k >= kindSingle:
			return k.route().words() + "; only one, because there is no room for all"
		case k >= kindRange:
			return k.route().words() + "; the port is kept"
		case k >= kindRangeSources:
			return sourceTexts[k-kindRangeSources].comment
		case k >= kindSources:
			return sourceTexts[k-kindSources].comment
		case k >= kindLimited && k < kindHold:
			return k.route().words() + "; each has a maximum of connections"
		case k == kindFirewall:
			return "loadBalancerSourceRanges"
		case k == kindExternalLocal:
			return "externalTrafficPolicy Local"
		default:
			return outcome.Rows[outcomes[k]].Words
		}
	}
	c, ok := classOf(inet.IPv6, chain)
	if !ok {
		return ""
	}
	switch {
	case c.kind < kindDirect:
		return fmt.Sprintf("%s; a client stays with its endpoint, and is remembered for %s", c.kind.route().list().words(), time.Duration(c.timeout)*time.Second)
	case c.kind >= kindChoose:
		return "an endpoint that is not full: " + c.table.share()
	case c.kind >= kindPick:
		return "a new client: " + c.table.share()
	}
	return c.kind.route().list().words() + "; " + c.table.share()
}

// share describes the share of one endpoint in a table.
func (t table) share() string {
	size := t.size
	if t.by != (selector{}) {
		return fmt.Sprintf("one of %d slots by %s", size, t.by.words())
	}
	if filled := surelyFilled(size); filled < size {
		return fmt.Sprintf("one of %d to %d by chance", filled+1, size)
	}
	return fmt.Sprintf("one of %d by chance", size)
}

// words describes the endpoints of a list.
func (l list) words() string { return [...]string{"any endpoint", "endpoints on this node only"}[l] }

// words describes the traffic of a route and its endpoints.
func (r route) words() string {
	return [...]string{
		"a cluster IP: any endpoint",
		"a cluster IP with internalTrafficPolicy Local: endpoints on this node only",
		"from outside with policy Cluster: any endpoint, masqueraded",
		"policy Local, but from a local pod or this node: any endpoint",
		"policy Local, from outside: endpoints on this node only",
	}[r]
}
