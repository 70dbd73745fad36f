package apply

import (
	"fmt"
	"maps"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// check is the state of the check that reads all elements and rules. The check runs in its own goroutine and does not
// delay commits. Without a listener, only the check finds a changed value and, before kernel 6.16, a missing element.
type check struct {
	// due is true if a check must start. failures counts successive checks that failed, mostly because the ruleset
	// changed meanwhile.
	due      bool
	failures int
	// answer receives the outcome; nil if no check runs.
	answer chan outcome
}

// outcome is the result of a check.
type outcome struct {
	// generation is the ruleset's generation before the check, now the generation after it.
	generation, now uint32
	// wrong describes a difference; "" if there is none.
	wrong string
	err   error
}

// patienceOfCheck is the number of successive failed checks after which a full sync replaces the check.
const patienceOfCheck = 5

// mostChecked is the largest number of elements that a check reads. The kernel's work to list elements grows with the
// square of their number. For more elements, a full sync takes less time.
const mostChecked = 200_000

// verify starts a check that is due, or evaluates the outcome of a check. It starts no check while the kernel's tables
// are unknown.
func (k *Kernel) verify() {
	c := &k.check
	if c.answer != nil {
		select {
		case o := <-c.answer:
			c.answer = nil
			k.finishCheck(o)
		default:
		}
		return
	}
	if !c.due || !k.known {
		return
	}
	conn, err := nft.Open()
	if err != nil {
		return // the next CheckRuleset tries again
	}
	c.due, c.answer = false, make(chan outcome, 1)
	o, states, tables, answer := outcome{generation: k.generation}, maps.Clone(k.states), k.tables, c.answer
	go func() {
		o.wrong, o.now, o.err = findDifference(conn, states, tables)
		_ = conn.Close()
		answer <- o
	}()
}

// finishCheck records the outcome of a check.
func (k *Kernel) finishCheck(o outcome) {
	c := &k.check
	if o.err == nil && o.now != o.generation && !k.others.harmless(o.generation, o.now) {
		o.err = nft.ErrChanged // the check starts again
	}
	switch {
	case o.err != nil:
		c.due = true
		if c.failures++; c.failures >= patienceOfCheck {
			why := "another program may have changed the tables, and reading them fails: " + o.err.Error()
			k.others.suspect(why, o.generation)
			c.failures = 0
		}
	case o.wrong != "":
		k.others.suspect(o.wrong, o.generation)
		c.failures = 0
	default:
		c.failures = 0
	}
}

// findDifference reads all elements and rules, and compares them with states and tables. wrong describes a difference,
// or is "". now is the ruleset's generation after the reading. The result is valid only if no commit up to this
// generation changed the tables.
func findDifference(
	conn *nft.Conn, states map[inet.Family]*nft.Element, tables []*nft.Table,
) (wrong string, now uint32, err error) {
	for _, t := range tables {
		have, err := conn.ReadTable(t.Family, t.Name)
		if err != nil {
			return "", 0, err
		}
		chains, err := have.OtherRules(t)
		if err != nil {
			return "", 0, err
		}
		same, err := sameElements(conn, states[t.Family], t)
		if err != nil {
			return "", 0, err
		}
		at := fmt.Sprintf("table %s %s: ", t.Family.Keyword(), t.Name)
		switch {
		case wrong != "":
		case len(chains) > 0:
			wrong = fmt.Sprintf("%sthe rules of chain %s differ from the plan", at, chains[0])
		case !same:
			wrong = at + "its elements differ from the plan"
		}
	}
	now, err = conn.Generation()
	return wrong, now, err
}

// sameElements reads all elements of a table, and compares them with its state.
func sameElements(conn *nft.Conn, state *nft.Element, t *nft.Table) (bool, error) {
	want, err := readState(state)
	if err != nil {
		return false, err
	}
	have := digest{key: want.key}
	for _, s := range t.Sets {
		if !plan.Planned(s) {
			continue
		}
		_, err := conn.Each(s, func(f *nft.Found) bool {
			have.sum += have.key.hash(&f.Element)
			return true
		})
		if err != nil {
			return false, err
		}
	}
	return have == want.digest, nil
}
