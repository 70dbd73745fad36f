package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// reason describes why a packet reached its result.
func (w *world) reason() string {
	switch {
	case w.outcome == Unknown, w.outcome == Passed:
		return w.why
	case w.outcome == Dropped || w.outcome == Refused:
		return w.stopped()
	case !w.translated:
		return w.untouched()
	}
	meaning, last := "", ""
	for _, s := range w.steps {
		if s.Hook == nft.HookName(unix.NF_INET_POST_ROUTING) {
			break
		}
		last = s.Comment
		for _, chain := range []string{s.Chain, s.To} {
			m := plan.ChainMeaning(chain)
			if m != "" && (!s.Back || chain == s.Chain) && !strings.Contains(chain, "pick-") {
				meaning = m
			}
		}
	}
	if w.remembered() {
		meaning += ", and this client is remembered"
	}
	return cmp.Or(meaning, last, "a rule translates it")
}

// remembered reports whether session affinity chose the endpoint.
func (w *world) remembered() bool {
	known := false
	chosen := func(f Fact) bool { return plan.Remembers(f.Set) && f.Value != "" }
	for _, s := range w.steps {
		known = known || slices.ContainsFunc(s.Facts, chosen)
		if s.Back && strings.Contains(s.To, "pick-") {
			return false
		}
	}
	return known
}

// stopped returns the reason why a packet is rejected or dropped: the comment of the deciding rule, or the meaning of
// its chain.
func (w *world) stopped() string {
	if w.outcome == Dropped && w.why != "" {
		return w.why
	}
	if len(w.steps) == 0 {
		return ""
	}
	last := w.steps[len(w.steps)-1]
	why := fmt.Sprintf("rule %q of chain %s", last.Rule, last.Chain)
	if o := plan.OutcomeOf(last.Chain); o != outcome.None {
		why = outcome.Rows[o].Words
		for _, s := range slices.Backward(w.steps) {
			if s.To == last.Chain {
				why = cmp.Or(s.Comment, why)
				break
			}
		}
	}
	why = cmp.Or(last.Comment, why)
	// If a packet to a Service reaches the rules for untranslated packets, the earlier rules should have translated it.
	unclaimed := func(s Step) bool { return strings.HasSuffix(s.Chain, "-unclaimed") }
	if found(w.steps) && slices.ContainsFunc(w.steps, unclaimed) {
		why = w.whyUntranslated() + ", and then: " + why
	}
	return why
}

// found reports whether a lookup has found the destination address and port of a Service. Port ranges do not count: the
// rules for untranslated packets look them up.
func found(steps []Step) bool {
	return hasFact(steps, func(f Fact) bool {
		return (f.Set == plan.SinglesSet || f.Set == plan.ServicesSet || f.Set == plan.NodePortsSet) && !f.Missing
	})
}

func hasFact(steps []Step, is func(Fact) bool) bool {
	return slices.ContainsFunc(steps, func(s Step) bool { return slices.ContainsFunc(s.Facts, is) })
}

// isVIP reports whether the destination address is a cluster IP, or in the set refused, regardless of the port.
func (w *world) isVIP() bool {
	return hasFact(w.steps, func(f Fact) bool { return (f.Set == "cluster-ips" || f.Set == "refused") && !f.Missing })
}

// untouched returns the reason why no rule has translated the packet.
func (w *world) untouched() string {
	if !found(w.steps) {
		return "not a Service's address and port"
	}
	return "a Service has this address and port, but " + w.whyUntranslated()
}

// whyUntranslated returns the reason why no rule translated a Service's packet: a missing element of a map, if there is
// one.
func (w *world) whyUntranslated() string {
	for _, f := range slices.Backward(w.misses) {
		if !plan.OftenMissed(f.Set) {
			return fmt.Sprintf("map %s has no element %s", f.Set, f.Key)
		}
	}
	return "no rule translates it"
}

// whyMasqueraded returns the comment of the rule that marked the packet for masquerading or, without a mark, of the
// last rule with a comment.
func (w *world) whyMasqueraded() string {
	if w.markedBy != nil {
		return w.markedBy.Comment
	}
	for _, s := range slices.Backward(w.steps) {
		if s.Comment != "" {
			return s.Comment
		}
	}
	return ""
}

// hints suggests the intended Service if the destination has no Service, and lists other faults.
func (e *evaluator) hints(t *Trace, worlds []*world) (list []string, err error) {
	expired := func(f Fact) bool { return f.Set == plan.LeaseSet && f.Missing }
	leased := func(f Fact) bool { return f.Set == plan.LeaseSet && !f.Missing }
	for _, w := range worlds {
		if slices.ContainsFunc(w.misses, expired) && !hasFact(w.steps, leased) {
			list = append(list, "the lease has expired: kube-nftproxy does not run on this node, or its commits fail; "+
				"the rules of another proxy take precedence")
			break
		}
	}
	if !e.packet.Own && e.packet.NoRoute {
		list = append(list, fmt.Sprintf("this node has no route back to %s", e.packet.From))
	}
	if t.Frontend != "" {
		return list, nil
	}
	for _, protocol := range inet.Protocols {
		key := nft.Value{}.Addr(e.packet.To.Addr()).Proto(protocol).Port(e.packet.To.Port())
		var name string
		for _, set := range []string{plan.SinglesSet, plan.ServicesSet, plan.RangesSet} {
			if name, err = e.nameOf(set, key); err != nil {
				return nil, err
			}
			if name != "" {
				list = append(list, fmt.Sprintf("%s has this address and port for %s", name, protocol))
				break
			}
		}
		if name, err = e.nameOf(plan.NodePortsSet, nft.Value{}.Proto(protocol).Port(e.packet.To.Port())); err != nil {
			return nil, err
		}
		switch {
		case name == "":
		case protocol == e.packet.Protocol:
			list = append(list, fmt.Sprintf("the port is a node port of %s, but node ports are not served at this address "+
				"(--nodeport-addresses)", name))
		default:
			list = append(list, fmt.Sprintf("the port is a node port of %s for %s", name, protocol))
		}
	}
	if len(list) == 0 && slices.ContainsFunc(worlds, func(w *world) bool { return w.isVIP() }) {
		list = append(list, "to list the ports of this address: kube-nftproxy services "+e.packet.To.Addr().String())
	}
	return list, nil
}

// nameOf returns the comment of the element with a key in a set, or "".
func (e *evaluator) nameOf(set string, key nft.Value) (string, error) {
	s := e.Table.Sets[set]
	if s == nil || s.KeyLen() != len(key.Bytes()) {
		return "", nil
	}
	found, err := e.Elements.Get(s, []nft.Value{key})
	if err != nil || found[0] == nil {
		return "", err
	}
	return found[0].Comment, nil
}

// Words describes the effect of a rule that matches, and the meaning of the chain that it leads to.
func Words(t *read.Table, r *read.Rule, target string) string {
	text := r.Comment
	if text == "" {
		text = effect(r)
	}
	if text == "" {
		text = read.Text(t.Family, r.Exprs, t.Sets)
	}
	if ch := t.Chains[target]; ch != nil {
		meaning := cmp.Or(plan.ChainMeaning(target), ch.Comment)
		text += fmt.Sprintf("; on to %s: %s", target, meaning)
	}
	return text
}

// effect describes the last expression of a rule that has an effect.
func effect(r *read.Rule) string {
	text := ""
	for _, x := range r.Exprs {
		switch x := x.Any.(type) {
		case *expr.Lookup:
			text = plan.Found(x.SetName)
		case *expr.Numgen:
			text = "draws one of " + fmt.Sprint(x.Modulus)
		case *expr.Hash:
			text = fmt.Sprintf("has one of %d slots by a hash", x.Modulus)
		case *expr.NAT:
			text = strings.TrimPrefix(text+", ", ", ") + "is translated to that endpoint"
			if x.Type != expr.NATTypeDestNAT {
				text = "gets another source address"
			}
		case *expr.Dup:
			text = "is passed on to the endpoint's node"
		case *expr.Objref:
			text = "has these timeouts in connection tracking"
		case *expr.Masq:
			text = "is masqueraded"
		case *expr.Reject:
			text = "is refused"
		case *expr.Dynset:
			if text = "is counted"; plan.Remembers(x.SetName) {
				if text = "the client is remembered"; x.Operation > unix.NFT_DYNSET_OP_UPDATE {
					text = "the client is forgotten"
				}
			}
		case *expr.Meta:
			if x.SourceRegister && x.Key == expr.MetaKeyMARK {
				text = "is marked for masquerading"
			}
		case *expr.Ct:
			text = "was translated"
		case *expr.Verdict:
			if x.Kind == expr.VerdictDrop {
				text = "is dropped"
			}
		}
	}
	return text
}
