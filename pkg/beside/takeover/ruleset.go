package takeover

import (
	"maps"
	"slices"
)

// ruleset is a table of iptables, of either backend, with its chains and the references between them.
type ruleset struct {
	table  string
	chains []chain
	rules  []rule
}

// chain is a chain of a ruleset.
type chain struct {
	name    string
	builtin bool
	// drops is true if the policy of a built-in chain is to drop.
	drops bool
	// elsewhere is true if something other than the parsed rules refers to the chain, such as the elements of a map.
	elsewhere bool
}

// rule is a rule of a ruleset.
type rule struct {
	chain   string
	targets []string
	comment string
}

// removal is the part of a ruleset to remove.
type removal struct {
	// chains are the chains to remove with their rules. jumps are the indexes of rules to remove from remaining chains.
	chains map[string]bool
	jumps  []int
	// kept has kube-proxy's chains that must stay, each with a description of the reference to it.
	kept map[string]string
	// unaccepted is true if the policy of chain FORWARD is drop, and a rule to remove accepted forwarded packets.
	unaccepted bool
}

// empty reports whether there is nothing to remove.
func (r *removal) empty() bool { return len(r.chains)+len(r.jumps) == 0 }

// keptNames returns the names of kube-proxy's chains that must stay, sorted.
func (r *removal) keptNames() []string { return slices.Sorted(maps.Keys(r.kept)) }

// removal returns the part of kube-proxy: its chains, and its rules in built-in chains that jump to them. If a rule
// of another program jumps to a chain, this chain stays, with all chains to which its rules jump.
func (s *ruleset) removal() removal {
	r := removal{chains: map[string]bool{}, kept: map[string]string{}}
	builtin, drops := map[string]bool{}, map[string]bool{}
	for _, c := range s.chains {
		switch {
		case c.builtin:
			builtin[c.name], drops[c.name] = true, c.drops
		case !isKubeProxys(s.table, c.name):
		case c.elsewhere:
			r.kept[c.name] = "a map, or an unreadable rule"
		default:
			r.chains[c.name] = true
		}
	}
	jumps := func(rl *rule) bool {
		return builtin[rl.chain] && isKubeProxysJump(rl.comment) &&
			slices.ContainsFunc(rl.targets, func(target string) bool { return isKubeProxys(s.table, target) })
	}
	for changed := true; changed; {
		changed = false
		for i := range s.rules {
			if r.chains[s.rules[i].chain] || jumps(&s.rules[i]) {
				continue
			}
			for _, target := range s.rules[i].targets {
				if r.chains[target] {
					delete(r.chains, target)
					r.kept[target] = "a rule of chain " + s.rules[i].chain
					changed = true
				}
			}
		}
	}
	for i := range s.rules {
		if jumps(&s.rules[i]) {
			r.jumps = append(r.jumps, i)
			r.unaccepted = r.unaccepted || drops["FORWARD"] && slices.Contains(s.rules[i].targets, "KUBE-FORWARD")
		}
	}
	return r
}
