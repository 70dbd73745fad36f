package apply

import (
	"fmt"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Resume makes a planner, before any Service is planned, continue the work of the process that has left the tables in the kernel: the
// numbers that it had assigned can be recalled, and tables that are as wanted are found to be so. Tables of another form are passed over.
func (k *Kernel) Resume(p *plan.Planner) error {
	k.readable = map[*nft.Set]bool{}
	for _, t := range p.Tables() {
		f, err := k.find(t)
		if err != nil {
			return fmt.Errorf("read tables of an earlier process: %w", err)
		}
		for _, s := range t.Sets {
			info, exists := f.sets[s.Name]
			k.readable[s] = exists && info.Is(s)
		}
		if err := k.resumeTable(p, t); err != nil {
			return fmt.Errorf("read tables of an earlier process: %w", err)
		}
	}
	return nil
}

func (k *Kernel) resumeTable(p *plan.Planner, t *nft.Table) error {
	family := model.IPv4
	if t.Family != nft.IPv4 {
		family = model.IPv6
	}
	stateSet, remembering := p.State(t.Family).Set, p.Remembering(family)
	if !k.readable[stateSet] || !k.readable[remembering] {
		return nil
	}
	found, err := k.conn.Elements(stateSet)
	if err != nil || len(found) != 1 {
		return err
	}
	state, err := plan.ReadState(&found[0])
	if err != nil {
		return nil // another version has written it
	}
	blocks, err := k.conn.Elements(remembering)
	if err == nil {
		p.Resume(family, state, blocks)
	}
	return err
}

// Recall reads back the numbers of Services that are about to be planned for the first time.
func (k *Kernel) Recall(p *plan.Planner, services []*model.Service) error {
	if !p.Recalling() {
		return nil
	}
	return p.Recall(func(s *nft.Set, keys []nft.Value) ([]*nft.Found, error) {
		if !k.readable[s] {
			return make([]*nft.Found, len(keys)), nil
		}
		return k.conn.Get(s, keys)
	}, services)
}
