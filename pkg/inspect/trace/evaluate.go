package trace

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
)

// world is a packet on one of its possible paths, with the state that the kernel keeps for it.
type world struct {
	chance         float64
	registers      [read.Registers]byte
	source         netip.Addr
	to             netip.AddrPort
	mark, priority uint32
	in, out        string
	// portIn is the register into which the current rule has loaded the source port; 0 if it has not.
	portIn uint32
	hook   string

	translated, masqueraded bool
	noRoute                 bool
	markedBy                *Step
	steps                   []Step
	misses                  []Fact
	facts                   []Fact // of the current rule

	// passedTo is the endpoint along whose route the current rule sends a copy of the packet.
	passedTo netip.Addr

	// hashed is the last hash of an unknown source port. slot is its result. After a merge of several worlds, slots has
	// the chance of each result.
	hashed *expr.Hash
	slot   uint32
	slots  []float64

	// drawnFrom is the world that a draw in the current rule has split into this world and others; nil without a draw.
	drawnFrom *world

	verdict verdict
	outcome Outcome
	why     string
}

// verdict is the decision of a rule: a verdict code of the kernel, or final. chain is the next chain, if any.
type verdict struct {
	code  int32
	chain string
}

// Other verdict codes: NF_DROP and NF_ACCEPT, which golang.org/x/sys/unix lacks. After final, outcome is set.
const drop, accept, final = 0, 1, 2

var (
	continues = verdict{code: unix.NFT_CONTINUE}
	// broken is the verdict if the rule does not match.
	broken = verdict{code: unix.NFT_BREAK}
)

// fork returns a copy for another path.
func (w *world) fork() *world {
	c := *w
	c.steps, c.misses, c.facts = slices.Clip(w.steps), slices.Clip(w.misses), slices.Clip(w.facts)
	return &c
}

func (w *world) end(o Outcome, why string) {
	w.verdict, w.outcome, w.why = verdict{code: final}, o, why
}

func (w *world) note(f Fact) { w.facts = append(w.facts, f) }

// evaluator evaluates rules for many worlds at a time, so that it needs few requests for elements.
type evaluator struct {
	Config
	packet Packet
	depth  int
	// finished holds the worlds that left the current base chain by a final verdict, such as accept or drop.
	finished []*world
}

// hook sends worlds through a base chain, and returns all of them. If the chain stops a world, the world has an
// outcome.
func (e *evaluator) hook(ch *read.Chain, worlds []*world) (on []*world, err error) {
	e.finished = nil
	for _, w := range worlds {
		w.hook = nft.HookName(ch.Hook)
	}
	back, err := e.chain(ch.Name, worlds)
	if err != nil {
		return nil, err
	}
	for _, w := range back {
		if ch.Drops {
			w.end(Dropped, fmt.Sprintf("the policy of chain %s is to drop", ch.Name))
		}
	}
	return append(back, e.finished...), nil
}

// maxDepth is the kernel's limit of nested chains.
const maxDepth = 16

// chain sends worlds through a chain, and returns the worlds that return from it.
func (e *evaluator) chain(name string, worlds []*world) (back []*world, err error) {
	ch := e.Table.Chains[name]
	if ch == nil {
		return nil, fmt.Errorf("there is no chain %s", name)
	}
	if e.depth++; e.depth > maxDepth {
		return nil, errors.New("the chains form a loop")
	}
	defer func() { e.depth-- }()
	live := worlds
	for i := range ch.Rules {
		if len(live) == 0 {
			break
		}
		var returned []*world
		if live, returned, err = e.rule(ch, &ch.Rules[i], live); err != nil {
			return nil, err
		}
		back = append(back, returned...)
	}
	return append(back, live...), nil
}

// rule evaluates a rule. next holds the worlds that continue with the next rule, and back the worlds that return from
// the chain.
func (e *evaluator) rule(ch *read.Chain, r *read.Rule, worlds []*world) (next, back []*world, err error) {
	active := worlds
	for _, w := range active {
		w.facts, w.verdict, w.drawnFrom, w.portIn = nil, continues, nil, 0
	}
	var decided []*world
	missed := map[*world]*world{}
	for _, x := range r.Exprs {
		if active, err = e.expression(x, active); err != nil {
			return nil, nil, fmt.Errorf("chain %s: %w", ch.Name, err)
		}
		active = slices.DeleteFunc(slices.Clone(active), func(w *world) bool {
			if w.verdict == broken {
				if other := missed[w.drawnFrom]; other != nil && w.drawnFrom != nil {
					// For these results of a draw, the rule does not match: the next rule treats them alike.
					other.merge(w)
					return true
				}
				missed[w.drawnFrom] = w
				w.miss()
				next = append(next, w)
				return true
			}
			if w.verdict == continues {
				return false
			}
			decided = append(decided, w)
			return true
		})
	}
	line := e.Table.RuleText(r)
	for _, w := range slices.Concat(active, decided) {
		w.step(ch, r, line)
	}
	next = append(next, active...)
	more, back, err := e.decide(decided)
	return append(next, more...), back, err
}

// merge adds a world that differs only in the result of a draw.
func (w *world) merge(o *world) {
	if w.hashed != nil {
		if w.slots == nil {
			w.slots = make([]float64, w.hashed.Modulus)
			w.slots[w.slot] = w.chance
		}
		w.slots[o.slot] += o.chance
	}
	w.chance += o.chance
}

// miss records the failed lookups of a rule that did not match.
func (w *world) miss() {
	for _, f := range w.facts {
		if f.Missing {
			w.misses = append(w.misses, f)
		}
	}
}

func (w *world) step(ch *read.Chain, r *read.Rule, line string) {
	w.steps = append(w.steps, Step{
		Hook: w.hook, Chain: ch.Name, Rule: line, Comment: r.Comment, Facts: w.facts, To: w.verdict.chain,
		Back: w.verdict.code == unix.NFT_JUMP,
	})
	for _, f := range w.facts {
		if f.Did == didMark {
			w.markedBy = &w.steps[len(w.steps)-1]
		}
	}
}

// decide applies the verdicts of worlds.
func (e *evaluator) decide(worlds []*world) (next, back []*world, err error) {
	groups := map[verdict][]*world{}
	var order []verdict
	for _, w := range worlds {
		v := w.verdict
		if groups[v] == nil {
			order = append(order, v)
		}
		groups[v] = append(groups[v], w)
	}
	for _, v := range order {
		group := groups[v]
		switch v.code {
		case unix.NFT_JUMP, unix.NFT_GOTO:
			came, err := e.chain(v.chain, group)
			if err != nil {
				return nil, nil, err
			}
			if v.code == unix.NFT_JUMP {
				next = append(next, came...)
			} else {
				back = append(back, came...)
			}
		case unix.NFT_RETURN:
			back = append(back, group...)
		case drop:
			for _, w := range group {
				if w.end(Dropped, ""); w.passedTo.IsValid() {
					node := "the node of " + w.passedTo.String()
					w.end(Passed, "direct server return: "+node+" translates it, and sends the replies")
				}
			}
			e.finished = append(e.finished, group...)
		default:
			e.finished = append(e.finished, group...)
		}
	}
	return next, back, nil
}

// decides sets a verdict with a code of the kernel. An unknown code stops the world.
func (w *world) decides(code int32, chain string) {
	switch code {
	case unix.NFT_JUMP, unix.NFT_GOTO, unix.NFT_RETURN, unix.NFT_CONTINUE, unix.NFT_BREAK, drop, accept:
		w.verdict = verdict{code, chain}
	default:
		w.end(Unknown, fmt.Sprintf("verdict %d", code))
	}
}

// chainsAt returns the base chains of a table at a hook, in the order of evaluation.
func chainsAt(t *read.Table, hook uint32) (list []*read.Chain) {
	for _, ch := range t.Chains {
		if ch.Type != "" && ch.Hook == hook {
			list = append(list, ch)
		}
	}
	slices.SortFunc(list, func(a, b *read.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return list
}
