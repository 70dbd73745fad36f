package plan

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestOutcomesHaveCounters: elements count exactly those outcomes whose rows name the elements.
func TestOutcomesHaveCounters(t *testing.T) {
	c := New(testOptions()).Rules().Counters()
	counted := map[outcome.Code]bool{}
	for _, s := range c.Sets() {
		for k := kindReject; k < kindPick; k++ {
			word := nft.Value{}.Uint32(class{kind: k, table: table{size: 1}, timeout: timeouts[0]}.number())
			m, also := c.Meaning(&nft.Element{Set: s, Data: word})
			counted[m], counted[also] = true, true
		}
	}
	// The connections that source ranges drop are those that the rules examined, and did not allow.
	counted[outcome.SourceRange], counted[outcome.None] = counted[Examined] && counted[Allowed], false
	for code, row := range outcome.Rows {
		if has := counted[outcome.Code(code)]; has != (row.Counted != "") {
			t.Errorf("outcome %d (%s): an element counts it: %t; its row says %q", code, row.Label, has, row.Counted)
		}
	}
}

// TestOutcomesOfChains: trace has words for a chain that refuses or drops all packets, and they name the right time.
func TestOutcomesOfChains(t *testing.T) {
	for k := kindReject; k < kindEnd; k++ {
		o := kinds[k].outcome
		if o == outcome.None {
			continue
		}
		name, want := nameOf(k), outcome.Rows[o].Words
		if got := ChainMeaning(name); OutcomeOf(name) != o || got != want || want == "" {
			t.Errorf("%s: outcome %d, %q; want %d, %q", name, OutcomeOf(name), got, o, want)
		}
	}
	lab.Same(t, outcome.None, OutcomeOf("endpoints-of-3"), "outcome of endpoints-of-3")
	lab.Contains(t, outcome.Rows[outcome.Held].Does, "does", HoldTime.String())
}
