package takeover

import (
	"maps"
	"slices"
)

// ruleset is a table of iptables, of either backend, as far as it matters which chain leads to which.
type ruleset struct {
	table  string
	chains []chain
	rules  []rule
}

// chain is one of a ruleset.
type chain struct {
	name    string
	builtin bool
	// drops says that the policy of a built-in chain is to drop.
	drops bool
	// elsewhere says that something leads to it that isn't among the rules.
	elsewhere bool
}

// rule is one of a ruleset.
type rule struct {
	chain   string
	targets []string
	comment string
}

// removal is what is to be taken out of a ruleset.
type removal struct {
	// chains go with all of their rules; jumps are the places in the ruleset of rules that go from chains that stay.
	chains map[string]bool
	jumps  []int
	// kept are chains of kube-proxy that have to stay, and what leads to them.
	kept map[string]string
	// unaccepted says that the table drops what no rule accepts, and that kube-proxy's rules were among those that accept.
	unaccepted bool
}

// empty reports whether nothing is to be removed.
func (r *removal) empty() bool { return len(r.chains)+len(r.jumps) == 0 }

// keptNames lists the chains that stay.
func (r *removal) keptNames() []string { return slices.Sorted(maps.Keys(r.kept)) }

// removal finds what is kube-proxy's: its chains, and its rules that lead to them from built-in chains. A chain to which
// somebody else's rule leads stays as it is, with all that it leads to itself.
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
