package matrix

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// outcome is what comes of one connection: refused, dropped, or "HOST from SOURCE", in which SOURCE is kept, node, or an
// address that should not be there.
type outcome string

const (
	refused outcome = "refused"
	dropped outcome = "dropped"
)

const (
	kept     = "kept"
	fromNode = "node"
)

func reached(host, source string) outcome { return outcome(host + " from " + source) }

// wanted is what has to come of a cell: the same verdict always, or else each of the endpoints in some of the tries.
// With session affinity it is one of them in all tries.
type wanted struct {
	verdict   outcome
	endpoints map[string]outcome
}

// outcomes lists what may be seen, in order.
func (w wanted) outcomes() []outcome {
	if w.verdict != "" {
		return []outcome{w.verdict}
	}
	return slices.Sorted(maps.Values(w.endpoints))
}

// endpoint returns the one that an outcome belongs to.
func (w wanted) endpoint(o outcome) string {
	for host, outcome := range w.endpoints {
		if outcome == o {
			return host
		}
	}
	return ""
}

func (w wanted) String() string { return list(w.outcomes()) }

func list(outcomes []outcome) string {
	var words []string
	for _, o := range outcomes {
		words = append(words, string(o))
	}
	return strings.Join(words, " | ")
}

// want states the rules for Services.
func want(c cell) wanted {
	hosts := c.service.placement.hosts()
	if len(hosts) == 0 {
		return wanted{verdict: refused}
	}
	if c.heldToLocal() {
		hosts = slices.DeleteFunc(hosts, func(host string) bool { return !onThisNode(host) })
	}
	if len(hosts) == 0 {
		return wanted{verdict: dropped}
	}
	w := wanted{endpoints: map[string]outcome{}}
	for _, host := range hosts {
		w.endpoints[host] = c.arrival(host)
	}
	return w
}

// heldToLocal: each kind of address has its policy. The external one is about traffic that another node could have got
// instead; pods and processes of this node have no choice, so they reach all endpoints.
func (c cell) heldToLocal() bool {
	if c.internal() {
		return c.service.internal == local
	}
	return c.service.external == local && !c.isLocalPod() && !c.isNode()
}

// arrival is what an endpoint sees of the client, if it sees it at all.
func (c cell) arrival(host string) outcome {
	own, _ := c.host()
	toItself := own == host && !c.isNode()
	switch {
	case c.client != secondary && c.isNode():
		return reached(host, fromNode) // masqueraded or not
	case host == "node" && !c.isNode():
		return reached(host, kept) // a node doesn't masquerade what it takes in for itself
	case toItself && onThisNode(host):
		return reached(host, fromNode) // the answer has to come back through the node
	case c.masqueraded():
		return reached(host, fromNode)
	case toItself:
		return dropped // by the endpoint, to which its own address comes from outside
	}
	return reached(host, kept)
}

// masqueraded: a cluster IP masks everybody but local pods, provided that these can be told from others. An external
// address with policy Cluster masks everybody, one with policy Local only processes of this node.
func (c cell) masqueraded() bool {
	switch {
	case c.internal() && c.mode.masqueradeAll:
		return true
	case c.internal():
		return c.mode.detector != byNothing && !c.isLocalPod()
	case c.service.external == cluster:
		return true
	}
	return c.isNode()
}

// isNode says that a process of this node calls.
func (c cell) isNode() bool {
	host, _ := c.host()
	return host == "node"
}

// isLocalPod says that the proxy takes the client for a local pod. A prefix of the whole cluster doesn't tell local pods
// from others.
func (c cell) isLocalPod() bool {
	switch c.client {
	case pod, itself:
		return c.mode.detector != byNothing && !c.isNode()
	case remote, remoteItself:
		return c.mode.detector == byClusterCIDR
	}
	return false
}

// TestWantedOutcomesTellEndpointsApart is a condition for following a pin from one address to the next.
func TestWantedOutcomesTellEndpointsApart(t *testing.T) {
	for _, m := range modes() {
		all, _ := groups(m)
		for _, g := range all {
			for _, c := range g {
				w := want(c)
				if (w.verdict == "") == (len(w.endpoints) == 0) {
					t.Errorf("%s: verdict %q, endpoints %v", c, w.verdict, w.endpoints)
				}
				for host, outcome := range w.endpoints {
					if got := w.endpoint(outcome); got != host {
						t.Errorf("%s: %q belongs to %s and %s", c, outcome, host, got)
					}
				}
			}
		}
	}
}
