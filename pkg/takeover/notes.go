package takeover

import (
	"fmt"

	"k8s.io/klog/v2"
)

// notes logs finished and failed changes.
type notes struct {
	klog.Logger
	// kept are the remaining chains that were logged.
	kept map[string]bool
}

func newNotes(logger klog.Logger) *notes { return &notes{logger, map[string]bool{}} }

// change is the part that was removed from a table of iptables.
type change struct {
	table string
	removal
}

// chains logs removed chains, and once each chain that had to stay.
func (n *notes) chains(c change) {
	if !c.empty() {
		n.removed(c.table, fmt.Sprintf("chains with their rules: %d, rules that led to them: %d", len(c.removal.chains), len(c.jumps)))
	}
	if c.unaccepted {
		n.Info("The policy of chain FORWARD is drop. The removed rules of kube-proxy accepted replies and masqueraded packets; check that the "+
			"rules of the pod network accept the traffic of pods", "where", c.table)
	}
	for _, name := range c.keptNames() {
		if where := c.table + " " + name; !n.kept[where] {
			n.kept[where] = true
			n.Info("Keeping a chain of kube-proxy to which another rule leads", "where", c.table, "chain", name,
				"by", c.removal.kept[name])
		}
	}
}

func (n *notes) removed(where, what string) {
	n.Info("Removed leftovers of kube-proxy", "where", where, "what", what)
}
