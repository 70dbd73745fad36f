package takeover

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
)

// attempts is the number of attempts of a change. An attempt fails if another program changes the ruleset between
// read and write.
const attempts = 5

// countNFT counts kube-proxy's chains in the tables of iptables-nft.
func countNFT(conn *nft.Conn) (n int, err error) {
	for _, f := range inet.Families {
		for _, t := range tables {
			chains, err := conn.Chains(f, t.name)
			if err != nil {
				return 0, err
			}
			var names []string
			for _, c := range chains {
				names = append(names, c.Name)
			}
			n += count(t.name, names)
		}
	}
	return n, nil
}

// removeNFT removes kube-proxy's chains from the tables of iptables-nft, in one batch for each family.
func removeNFT(conn *nft.Conn, note *notes) error {
	var errs []error
	for _, f := range inet.Families {
		errs = append(errs, again(func() error { return removeNFTFamily(conn, f, note) }))
	}
	return errors.Join(errs...)
}

// again retries a change that failed because another program has changed the object meanwhile.
func again(try func() error) (err error) {
	for range attempts {
		err = try()
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return err
}

// removeNFTFamily removes kube-proxy's chains of one family in one batch.
func removeNFTFamily(conn *nft.Conn, f inet.Family, note *notes) error {
	b := nft.NewBatch(0)
	var found []change
	for _, t := range tables {
		s, handles, err := readNFT(conn, f, t.name)
		if err != nil {
			return err
		}
		r := s.removal()
		table := &nft.Table{Family: f, Name: t.name}
		// The kernel does not delete a chain to which a rule refers: so delete all rules before all chains.
		for _, i := range r.jumps {
			b.DeleteRule(f, t.name, s.rules[i].chain, handles[i])
		}
		for _, c := range s.chains {
			if r.chains[c.name] {
				b.FlushRules(table, c.name)
			}
		}
		for _, c := range s.chains {
			if r.chains[c.name] {
				b.DeleteChain(table, c.name)
			}
		}
		found = append(found, change{fmt.Sprintf("table %s %s of iptables-nft", f.Keyword(), t.name), r})
	}
	if err := conn.Commit(b); err != nil {
		return fmt.Errorf("remove kube-proxy's chains of iptables-nft (%s): %w", f.Keyword(), err)
	}
	for _, c := range found {
		note.chains(c)
	}
	return nil
}

// readNFT reads a table of iptables-nft and the handles of its rules. A missing table is empty.
func readNFT(conn *nft.Conn, f inet.Family, table string) (*ruleset, []uint64, error) {
	s := &ruleset{table: table}
	chains, err := conn.Chains(f, table)
	if err != nil || !slices.ContainsFunc(chains, func(c nft.ChainInfo) bool { return isKubeProxys(table, c.Name) }) {
		return s, nil, err
	}
	rules, err := read.Rules(conn, f.Keyword(), table)
	if err != nil {
		return nil, nil, err
	}
	var handles []uint64
	uses := map[string]uint32{}
	for _, r := range rules {
		s.rules = append(s.rules, rule{chain: r.Chain, targets: r.Targets, comment: r.Comment})
		handles = append(handles, r.Handle)
		uses[r.Chain]++
		for _, target := range r.Targets {
			uses[target]++
		}
	}
	for _, c := range chains {
		s.chains = append(s.chains,
			chain{name: c.Name, builtin: c.Type != "", drops: c.Drops, elsewhere: c.Uses > uses[c.Name]})
	}
	return s, handles, nil
}
