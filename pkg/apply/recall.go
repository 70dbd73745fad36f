package apply

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Recall makes a planner continue the work of the process that left the tables in the kernel. It reads the numbers of
// the given Services. Call it before the planner plans these Services for the first time, and once before it plans any
// Service. The first call also reads the states of the tables, so that a sync can adopt tables of the same form.
func (k *Kernel) Recall(p *plan.Planner, services []*model.Service) error {
	if k.follow(p) {
		if err := k.resume(p); err != nil {
			return err
		}
	}
	return p.Recall(func(s *nft.Set, keys []nft.Value) ([]*nft.Found, error) {
		if !k.readable[s] {
			return make([]*nft.Found, len(keys)), nil
		}
		return k.conn.Get(s, keys)
	}, services)
}

func (k *Kernel) resume(p *plan.Planner) error {
	k.readable = map[*nft.Set]bool{}
	for _, t := range p.Tables() {
		left, f, err := k.leftState(t)
		if f != nil {
			for _, s := range t.Sets {
				info, exists := f.Sets[s.Name]
				k.readable[s] = exists && info.Is(s)
			}
		}
		if left != nil {
			err = k.resumeTable(p, t, left)
		}
		if err != nil {
			return fmt.Errorf("read tables of an earlier process: %w", err)
		}
	}
	return nil
}

// leftState returns the state that an earlier process left in a table, and the table without elements. The state is nil
// if there is none that this version can read.
func (k *Kernel) leftState(t *nft.Table) (left *state, f *nft.KernelTable, err error) {
	if f, err = k.conn.ReadTable(t.Family, t.Name); err != nil {
		return nil, nil, err
	}
	set, info := t.Set(plan.StateSet), f.Sets[plan.StateSet]
	if !info.Is(set) {
		return nil, f, nil
	}
	list, err := k.conn.Elements(set)
	if err != nil || len(list) != 1 {
		return nil, f, err
	}
	if s, unreadable := readState(&list[0]); unreadable == nil {
		left = &s
	}
	return left, f, nil
}

func (k *Kernel) resumeTable(p *plan.Planner, t *nft.Table, left *state) (err error) {
	var deleted, sources []nft.Element
	for _, set := range t.Sets {
		to := &sources
		if set.Name == plan.DeletedUDPSet {
			to = &deleted
		} else if !plan.HasSources(set) {
			continue
		}
		if k.readable[set] && err == nil {
			var list []nft.Element
			list, err = k.conn.Elements(set)
			*to = append(*to, list...)
		}
	}
	p.Resume(t.Family, left.next, deleted, sources)
	if err != nil {
		return err
	}
	k.ledger.resume(t.Family, left.key)
	return nil
}

// Earlier reports whether an earlier process of an instance has left rules, in the network namespace of the calling
// thread.
func Earlier(families []inet.Family, serviceProxyName string) (found bool, err error) {
	conn, err := nft.Open()
	if err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	for _, f := range families {
		sets, err := conn.Sets(f, plan.Table(serviceProxyName))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, err
		}
		found = found || len(sets) > 0
	}
	return found, nil
}

// EarlierUDP returns the UDP frontends in the tables that an earlier process of an instance left, in the network
// namespace of the calling thread. A missing table is not an error. Frontends that change meanwhile may be missing. The
// kernel's work grows with the square of the number of frontends.
func EarlierUDP(families []inet.Family, serviceProxyName string) (keys []model.Key, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	for _, f := range families {
		for _, s := range plan.FrontendSets(f, serviceProxyName) {
			_, err := conn.Each(s, func(e *nft.Found) bool {
				if k, ok := plan.FrontendOf(f, &e.Element); ok && k.Protocol == inet.UDP {
					keys = append(keys, k)
				}
				return true
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return keys, err
			}
		}
	}
	return keys, nil
}
