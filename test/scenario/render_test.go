package scenario

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/compare"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// checkRender: nft accepts the text of a plan, and the resulting tables equal those of the plan: the program adopts them.
func (r *rig) checkRender(t *testing.T, st *step, state *fresh) {
	t.Helper()
	elements := map[inet.Family]map[string][]nft.Element{inet.IPv4: {}, inet.IPv6: {}}
	put := func(e *nft.Element) {
		elements[e.Set.Family][e.Set.Name] = append(elements[e.Set.Family][e.Set.Name], *e)
	}
	state.planner.Elements(put)
	var kernel *apply.Kernel
	err := r.loaded.Do(func() (err error) {
		kernel, err = programmed(state.planner, put)
		return err
	})
	lab.Must(t, err)
	defer kernel.Close() //nolint:errcheck // every batch has been answered
	var text strings.Builder
	for _, table := range state.planner.Tables() {
		text.WriteString(read.Declare(table, elements[table.Family]))
	}
	for _, p := range r.programs {
		_, err := p.run(r.loaded, text.String(), "-c", "-f", "-")
		if err == nil {
			_, err = p.run(r.loaded, text.String(), "-f", "-")
		}
		if err == nil {
			err = r.loaded.Do(func() error { return sameTables(kernel, state.planner, elements) })
		}
		_, flushed := p.run(r.loaded, "", "flush", "ruleset")
		lab.Check(t, errors.Join(err, flushed), "step %d: %s -f with the rendered text", st.number, p.name)
	}
}

// programmed writes a plan into the calling thread's namespace, calls put with the elements that say what the tables hold, and deletes the
// tables. It returns the kernel that knows the plan.
func programmed(p *plan.Planner, put func(*nft.Element)) (*apply.Kernel, error) {
	kernel, err := apply.Open()
	if err != nil {
		return nil, err
	}
	conn, err := nft.Open()
	if err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	_, err = kernel.Sync(p)
	for _, table := range p.Tables() {
		for _, s := range table.Sets {
			if s.Name != plan.StateSet {
				continue
			}
			list, failed := conn.Elements(s)
			err = errors.Join(err, failed)
			for i := range list {
				put(&list[i])
			}
		}
	}
	_, failed := apply.Cleanup("")
	return kernel, errors.Join(err, failed, conn.Close())
}

// sameTables compares the tables of the calling thread's namespace with a plan, and lets the program adopt them.
func sameTables(kernel *apply.Kernel, p *plan.Planner, elements map[inet.Family]map[string][]nft.Element) error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // read only
	for _, table := range p.Tables() {
		got, err := compare.Diff(conn, []*nft.Table{table}, elements)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(&view.Diff{Differences: []view.DiffLine{}}, got); diff != "" {
			return fmt.Errorf("compared with the plan (-want +got):\n%s", diff)
		}
		have, err := conn.ReadTable(table.Family, table.Name)
		if err != nil {
			return err
		}
		differ, err := have.OtherRules(table)
		if err != nil {
			return err
		}
		for _, chain := range differ {
			// In these chains, nft loads the affinity data into another register.
			if !strings.HasPrefix(chain, "affinity-") && !strings.HasPrefix(chain, "remember-") {
				return fmt.Errorf("the rules of chain %s differ", chain)
			}
		}
	}
	kernel.Doubt()
	result, err := kernel.Sync(p)
	if err == nil && result.Kind != apply.Adopted {
		err = fmt.Errorf("the tables were %s instead of adopted: %s", result.Kind, result.Why)
	}
	return err
}
