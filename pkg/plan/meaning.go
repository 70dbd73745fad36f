package plan

import (
	"fmt"
	"time"
)

// The sets in which a packet's destination is looked up first, by the names that they have in the tables.
const (
	ServicesSet      = "services"
	NodePortsSet     = "nodeports"
	NodeAddressesSet = "node-addresses"
)

// ChainMeaning says in words what a chain stands for that packets of Services come to; "" if it has none of its own.
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

// share says how an endpoint is drawn from a table.
func share(size uint32) string {
	if filled := surelyFilled(size); filled < size {
		return fmt.Sprintf("one of %d to %d by chance", filled+1, size)
	}
	return fmt.Sprintf("one of %d by chance", size)
}

// Refuses reports whether packets that come to a chain are refused or dropped for what led them there.
func Refuses(chain string) bool { return chain == kindReject.name() || chain == kindDrop.name() }

// meanings are those of the chains that are always there.
var meanings = map[kind]string{
	kindReject:        "no endpoints",
	kindDrop:          "there are endpoints, but none for this traffic: its policy is Local, and none of them is on this node",
	kindFirewall:      "loadBalancerSourceRanges",
	kindExternalLocal: "externalTrafficPolicy Local",
}

// words say which endpoints a list has.
func (l list) words() string { return [...]string{"any endpoint", "endpoints on this node only"}[l] }

// words say which endpoints a route leads to.
func (r route) words() string {
	return [...]string{
		"a cluster IP: any endpoint",
		"a cluster IP with internalTrafficPolicy Local: endpoints on this node only",
		"from outside with policy Cluster: any endpoint, masqueraded",
		"policy Local, but from a local pod or this node: any endpoint",
		"policy Local, from outside: endpoints on this node only",
	}[r]
}
