package scenario

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// checkRender: nft accepts the text of a plan, and the resulting tables equal those of the plan: the program adopts them.
func (r *rig) checkRender(t *testing.T, st *step, state *fresh) {
	t.Helper()
	elements := map[nft.Family]map[string][]nft.Element{nft.IPv4: {}, nft.IPv6: {}}
	put := func(e *nft.Element) {
		elements[e.Set.Family][e.Set.Name] = append(elements[e.Set.Family][e.Set.Name], *e)
	}
	state.planner.Fit()
	state.planner.Elements(put)
	var text strings.Builder
	for _, table := range state.planner.Tables() {
		put(state.planner.State(table.Family))
		text.WriteString(nft.Declare(table, elements[table.Family]))
	}
	for _, p := range r.programs {
		_, err := p.run(r.loaded, text.String(), "-c", "-f", "-")
		if err == nil {
			_, err = p.run(r.loaded, text.String(), "-f", "-")
		}
		if err == nil {
			err = r.loaded.Do(func() error { return sameTables(state.planner, elements) })
		}
		_, flushed := p.run(r.loaded, "", "flush", "ruleset")
		if err := errors.Join(err, flushed); err != nil {
			t.Errorf("step %d: %s -f what is rendered: %v", st.number, p.name, err)
		}
	}
}

// sameTables compares the tables of the calling thread's namespace with a plan, and lets the program adopt them.
func sameTables(p *plan.Planner, elements map[nft.Family]map[string][]nft.Element) error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // read only
	for _, table := range p.Tables() {
		lines, err := conn.Diff(table, elements[table.Family])
		if err != nil {
			return err
		}
		if diff := cmp.Diff([]nft.Line(nil), lines); diff != "" {
			return fmt.Errorf("compared with the plan (-want +got):\n%s", diff)
		}
		for _, chain := range table.Chains {
			one := *table
			one.Chains = []*nft.Chain{chain}
			differs, err := conn.Differing(&one)
			if err != nil {
				return err
			}
			// nft loads the affinity data into another register here.
			if differs != "" && !strings.HasPrefix(differs, "affinity-") && !strings.HasPrefix(differs, "remember-") {
				return fmt.Errorf("the rules of chain %s are others", differs)
			}
		}
	}
	kernel, err := apply.Open()
	if err != nil {
		return err
	}
	result, err := kernel.Sync(p)
	if err == nil && result.Kind != apply.Adopted {
		err = fmt.Errorf("the tables were %s instead of adopted: %s", result.Kind, result.Why)
	}
	return errors.Join(err, kernel.Close())
}
