package takeover

import (
	"fmt"

	"k8s.io/klog/v2"
)

// notes logs removed objects, and chains that stay.
type notes struct {
	klog.Logger
	// kept has the chains that stay and were logged.
	kept map[string]bool
}

func newNotes(logger klog.Logger) *notes { return &notes{logger, map[string]bool{}} }

// change is a removal from a table of iptables.
type change struct {
	table string
	removal
}

// chains logs the number of removed chains and rules. It logs each chain that stays once.
func (n *notes) chains(c change) {
	if !c.empty() {
		n.removed(c.table, fmt.Sprintf("chains with their rules: %d, rules that jumped to them: %d",
			len(c.removal.chains), len(c.jumps)))
	}
	if c.unaccepted {
		n.Info("The policy of chain FORWARD is drop. The removed rules of kube-proxy accepted replies and masqueraded "+
			"packets. Check that other rules, for example of the network plugin, accept the traffic of pods",
			"where", c.table)
	}
	for _, name := range c.keptNames() {
		if where := c.table + " " + name; !n.kept[where] {
			n.kept[where] = true
			n.Info("Keeping a chain of kube-proxy that is still in use", "where", c.table, "chain", name,
				"by", c.removal.kept[name])
		}
	}
}

func (n *notes) removed(where, what string) {
	n.Info("Removed leftovers of kube-proxy", "where", where, "what", what)
}
