package plan

import (
	"fmt"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// The names of the sets that the chain services looks up.
const (
	SinglesSet       = "singles"
	ServicesSet      = "services"
	NodePortsSet     = "nodeports"
	NodeAddressesSet = "node-addresses"
)

// DirectSet is the name of the map that the chain prerouting-direct looks up.
const DirectSet = "direct"

// ChainMeaning describes the chain of a class in words, such as "no endpoints". It returns "" for any other chain.
func ChainMeaning(chain string) string {
	c, constant := classOfConstant(chain)
	if !constant {
		var known bool
		if c, known = classOf(inet.IPv6, chain); !known {
			return ""
		}
	}
	if row := &kinds[c.kind]; row.words != nil {
		return row.words(c)
	}
	return outcome.Rows[kinds[c.kind].outcome].Words
}

// share describes the share of one endpoint in a table.
func (t table) share() string {
	size := t.size
	if t.by != (selector{}) {
		return fmt.Sprintf("one of %d slots by %s", size, t.by.words())
	}
	if filled := surelyFilled(size); filled < size {
		return fmt.Sprintf("one of %d to %d at random", filled+1, size)
	}
	return fmt.Sprintf("one of %d at random", size)
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
