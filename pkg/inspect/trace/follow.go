package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Config holds the rules and functions that Follow needs.
type Config struct {
	Table    *read.Table
	Elements Elements
	Routes   Routes
	// Chains holds the base chains of all tables.
	Chains []read.BaseChain
}

// Follow returns all possible paths of a packet.
func Follow(c Config, p Packet) (*Trace, error) {
	t := &Trace{Packet: p}
	e := &evaluator{Config: c, packet: p}
	w := &world{chance: 1, source: p.From, to: p.To, in: p.Interface}
	worlds := []*world{w}
	var err error
	switch {
	case p.Own && p.NoRoute:
		advice := "Add a route, such as a default route"
		if !c.Table.Exists {
			advice = fmt.Sprintf("kube-nftproxy has no table for %s either: kube-nftproxy status shows the reason",
				c.Table.Family)
		}
		t.Why = fmt.Sprintf("this node has no route to %s: its processes get the error \"network is unreachable\" "+
			"before any rule is evaluated. %s", p.To.Addr(), advice)
		w.end(Refused, "")
	case !c.Table.Exists:
		t.Why = fmt.Sprintf("there is no table %s %s on this node: this host has no %[3]s or had none when "+
			"kube-nftproxy started, kube-nftproxy has not run or has not read all objects yet, or another program has "+
			"deleted the table. kube-nftproxy status shows the reason", c.Table.Family.Keyword(), c.Table.Name, c.Table.Family)
	case c.Table.Dormant:
		t.Why = fmt.Sprintf("table %s %s is dormant: another program has switched it off, and the kernel does not "+
			"evaluate its rules", c.Table.Family.Keyword(), c.Table.Name)
	default:
		if worlds, err = e.through(worlds); err != nil {
			return nil, fmt.Errorf("follow %s: %w", p, err)
		}
	}
	for _, w := range worlds {
		t.frontend(w)
	}
	if t.Ways, err = e.ways(worlds); err != nil {
		return nil, fmt.Errorf("follow %s: %w", p, err)
	}
	if t.Why != "" { // no rule was evaluated
		for i := range t.Ways {
			t.Ways[i].Why = ""
		}
	} else if t.Hints, err = e.hints(t, worlds); err != nil {
		return nil, fmt.Errorf("follow %s: %w", p, err)
	}
	t.Also = e.also(worlds)
	return t, nil
}

// through sends a packet through its hooks.
func (e *evaluator) through(worlds []*world) ([]*world, error) {
	first := uint32(unix.NF_INET_PRE_ROUTING)
	if e.packet.Own {
		first = unix.NF_INET_LOCAL_OUT
	}
	worlds, err := e.at(first, worlds, func(w *world) bool { return w.translated })
	if err != nil {
		return nil, err
	}
	var leaving, all []*world
	for _, w := range worlds {
		if w.outcome == "" {
			if err := e.route(w); err != nil {
				return nil, err
			}
		}
		if w.outcome == "" && !w.noRoute && (e.packet.Own || w.out != "") {
			leaving = append(leaving, w)
		} else {
			all = append(all, w)
		}
	}
	leaving, err = e.at(unix.NF_INET_POST_ROUTING, leaving, func(w *world) bool { return w.masqueraded })
	return append(all, leaving...), err
}

// at sends worlds through the chains of a hook. After a chain of type nat has translated a packet, it skips all later
// chains of this type.
func (e *evaluator) at(hook uint32, worlds []*world, translated func(*world) bool) ([]*world, error) {
	for _, ch := range chainsAt(e.Table, hook) {
		var meet, pass []*world
		for _, w := range worlds {
			if w.outcome != "" || ch.Type == "nat" && translated(w) {
				pass = append(pass, w)
			} else {
				meet = append(meet, w)
			}
		}
		on, err := e.hook(ch, meet)
		if err != nil {
			return nil, err
		}
		worlds = append(pass, on...)
	}
	return worlds, nil
}

// route sets the interface through which a packet leaves. A packet to this machine has none.
func (e *evaluator) route(w *world) error {
	typ, err := e.Routes.Type(w.to.Addr())
	switch {
	case err != nil:
		return err
	case w.translated && w.to.Addr().IsLoopback() && !e.packet.Own:
		w.end(Dropped, "its endpoint is a loopback address: only packets of this node reach it")
	case typ == unix.RTN_LOCAL && !e.packet.Own:
		return nil
	case typ != unix.RTN_LOCAL && typ != unix.RTN_UNICAST:
		w.noRoute = true
		return nil
	}
	w.out, _, err = e.Routes.Out(w.to.Addr())
	return err
}

// frontend sets the name of the service port from the first element of a Service that a lookup found.
func (t *Trace) frontend(w *world) {
	for _, s := range w.steps {
		for _, f := range s.Facts {
			switch f.Set {
			case plan.SinglesSet, plan.ServicesSet, plan.NodePortsSet, plan.RangesSet, plan.DirectSet,
				plan.DirectNodePortsSet:
				t.Frontend = cmp.Or(t.Frontend, f.Comment)
			}
		}
	}
}

// sameWay holds the fields that two paths must have in common so that ways merges them.
type sameWay struct {
	outcome     Outcome
	to          netip.AddrPort
	source      netip.Addr
	masqueraded bool
	why         string
}

// ways returns the paths of worlds. It merges worlds with the same result.
func (e *evaluator) ways(worlds []*world) ([]Way, error) {
	index := map[sameWay]int{}
	var list []Way
	for _, w := range worlds {
		way := w.way()
		key := sameWay{way.Outcome, way.To, way.Source, way.Masqueraded, way.Why}
		if i, ok := index[key]; ok {
			list[i].Probability += way.Probability
			continue
		}
		typ, err := e.Routes.Type(way.To.Addr())
		if err != nil {
			return nil, err
		}
		way.Here = typ == unix.RTN_LOCAL
		index[key] = len(list)
		list = append(list, way)
	}
	slices.SortFunc(list, func(a, b Way) int {
		likelier := cmp.Compare(round(b.Probability), round(a.Probability))
		return cmp.Or(likelier, a.To.Compare(b.To), cmp.Compare(a.Outcome, b.Outcome))
	})
	dropSteps(list)
	return list, nil
}

// dropSteps removes the steps of all but the first of several similar paths, because there may be thousands of paths.
func dropSteps(list []Way) {
	seen := map[sameWay]bool{}
	for i, w := range list {
		kind := sameWay{outcome: w.Outcome, masqueraded: w.Masqueraded, why: w.Why}
		if seen[kind] {
			list[i].Steps = nil
		}
		seen[kind] = true
	}
}

// round rounds a probability, so that sums of the same terms in another order are equal.
func round(p float64) int { return int(p*1e9 + 0.5) }

func (w *world) way() Way {
	way := Way{
		Probability: w.chance, Outcome: w.outcome, To: w.to, Source: w.source, Masqueraded: w.masqueraded,
		NoRoute: w.noRoute, Why: w.reason(), Steps: w.steps,
	}
	if way.Outcome == Refused {
		way.How = w.why
	}
	if way.Outcome == "" {
		way.Outcome = Untouched
		if w.translated {
			way.Outcome = Translated
		}
	}
	if w.masqueraded {
		way.MasqueradedWhy = w.whyMasqueraded()
	}
	return way
}

// also lists the chains of other tables that may affect the packet. Follow does not evaluate their rules.
func (e *evaluator) also(worlds []*world) (list []string) {
	hooks := map[uint32]bool{unix.NF_INET_PRE_ROUTING: !e.packet.Own, unix.NF_INET_LOCAL_OUT: e.packet.Own}
	for _, w := range worlds {
		switch {
		case w.outcome != "" || w.noRoute:
		case w.out == "":
			hooks[unix.NF_INET_LOCAL_IN] = true
		default:
			hooks[unix.NF_INET_FORWARD] = hooks[unix.NF_INET_FORWARD] || !e.packet.Own
			hooks[unix.NF_INET_POST_ROUTING] = true
		}
	}
	var other []string
	for _, ch := range e.Chains {
		if !hooks[ch.Hook] || ch.Family == e.Table.Family.Keyword() && ch.Table == e.Table.Name {
			continue
		}
		switch {
		case ch.Drops:
			list = append(list, ch.String()+" drops packets that it does not accept")
		case ch.MayTranslateBefore(e.reached(ch.Hook, worlds)):
			list = append(list, ch.String()+" may translate it first")
		case ch.Type != "nat" && ch.Uses > 0:
			other = append(other, fmt.Sprintf("%s %s %s", ch.Family, ch.Table, ch.Name))
		}
	}
	if len(other) > 0 {
		names := view.Names(other, 0)
		list = append(list, "other chains with rules that may stop or mark it: "+names+"; trace --live shows its real path")
	}
	return list
}

// reached returns the priority of the last chain of the program at a hook in which a rule matched the packet. If no
// rule matched, it returns the priority of the first chain.
func (e *evaluator) reached(hook uint32, worlds []*world) (priority int32) {
	for i, ch := range chainsAt(e.Table, hook) {
		matched := func(s Step) bool { return s.Chain == ch.Name && s.Comment != plan.NoServiceAddress }
		if i == 0 || slices.ContainsFunc(worlds, func(w *world) bool { return slices.ContainsFunc(w.steps, matched) }) {
			priority = ch.Priority
		}
	}
	return priority
}
