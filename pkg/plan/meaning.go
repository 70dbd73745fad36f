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
	for k := kindReject; k <= kindNodePortExternalLocal; k++ {
		if k.name() == chain {
			return meanings[k]
		}
	}
	c, ok := classOf(chain)
	if !ok {
		return ""
	}
	switch c.kind.stage() {
	case stageAffinity:
		return fmt.Sprintf("%s; a client stays with its endpoint for %s", c.kind.route().words(), time.Duration(c.n)*time.Second)
	case stagePick:
		return fmt.Sprintf("a new client: one of %d by chance", c.n)
	}
	return fmt.Sprintf("%s; one of %d by chance", c.kind.route().words(), c.n)
}

// Refuses reports whether packets that come to a chain are refused or dropped for what led them there.
func Refuses(chain string) bool { return chain == kindReject.name() || chain == kindDrop.name() }

// meanings are those of the chains that are always there.
var meanings = map[kind]string{
	kindReject:                "no endpoints",
	kindDrop:                  "there are endpoints, but none for this traffic: its policy is Local, and none of them is on this node",
	kindFirewall:              "loadBalancerSourceRanges",
	kindExternalLocal:         "externalTrafficPolicy Local",
	kindNodePortExternalLocal: "externalTrafficPolicy Local, by node port",
}

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
