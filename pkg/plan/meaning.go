package plan

import (
	"fmt"
	"time"
)

// The names of the sets that the chain services looks up.
const (
	ServicesSet      = "services"
	NodePortsSet     = "nodeports"
	NodeAddressesSet = "node-addresses"
)

// ChainMeaning describes the chain of a class in words, such as "no endpoints". It returns "" for any other chain.
func ChainMeaning(chain string) string {
	for k := kindReject; k < kindDirect; k++ {
		switch {
		case k.name() != chain:
		case k >= kindAffinity:
			return k.route().words() + "; a client stays with its endpoint"
		default:
			return meanings[k]
		}
	}
	c, ok := classOf(chain)
	if !ok {
		return ""
	}
	switch {
	case c.kind >= kindRemember:
		return fmt.Sprintf("remembered for %s", time.Duration(c.n)*time.Second)
	case c.kind >= kindPick:
		return "a new client: " + share(c.n)
	}
	return c.kind.route().list().words() + "; " + share(c.n)
}

// share describes the share of one endpoint in a table of a size.
func share(size uint32) string {
	if filled := surelyFilled(size); filled < size {
		return fmt.Sprintf("one of %d to %d by chance", filled+1, size)
	}
	return fmt.Sprintf("one of %d by chance", size)
}

// Refuses reports whether a chain rejects or drops all packets. The reason is then in the chain or element before it.
func Refuses(chain string) bool { return chain == kindReject.name() || chain == kindDrop.name() }

// meanings are the meanings of the chains that every plan has, except the chains for affinity.
var meanings = map[kind]string{
	kindReject:        "no endpoints",
	kindDrop:          "there are endpoints, but none for this traffic: its policy is Local, and none of them is on this node",
	kindFirewall:      "loadBalancerSourceRanges",
	kindExternalLocal: "externalTrafficPolicy Local",
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
