package takeover

import (
	"fmt"

	"k8s.io/klog/v2"
)

// notes writes what has been done, and what couldn't be, to the log.
type notes struct {
	klog.Logger
	// kept are chains of which it has been said that they stay.
	kept map[string]bool
}

func newNotes(logger klog.Logger) *notes { return &notes{logger, map[string]bool{}} }

// change is what was taken out of a table of iptables.
type change struct {
	table string
	removal
}

// chains tells of chains removed, and once of those that had to stay.
func (n *notes) chains(c change) {
	if !c.empty() {
		n.removed(c.table, fmt.Sprintf("chains with their rules: %d, rules that led to them: %d", len(c.removal.chains), len(c.jumps)))
	}
	if c.unaccepted {
		n.Info("The policy of FORWARD is to drop. kube-proxy's rules accepted replies and traffic that it masquerades, as in mode nftables "+
			"none do: see that those of the network plugin accept the traffic of pods", "where", c.table)
	}
	for _, name := range c.keptNames() {
		if where := c.table + " " + name; !n.kept[where] {
			n.kept[where] = true
			n.Info("A chain of kube-proxy's stays, because something else leads to it", "where", c.table, "chain", name,
				"by", c.removal.kept[name])
		}
	}
}

func (n *notes) removed(where, what string) {
	n.Info("Removed what kube-proxy had left", "where", where, "what", what)
}
