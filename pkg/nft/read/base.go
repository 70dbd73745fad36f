package read

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// BaseChain is a base chain of any table.
type BaseChain struct {
	// Family is nft's keyword for the table's family.
	Family string
	nft.ChainInfo
}

// String names the chain with its place.
func (ch *BaseChain) String() string {
	hook := nft.HookName(ch.Hook)
	return fmt.Sprintf("chain %s %s %s (hook %s, priority %d)", ch.Family, ch.Table, ch.Name, hook, ch.Priority)
}

// MayTranslateBefore reports whether the chain may translate packets before a chain of type nat with the same hook and
// a priority. Of two chains with the same priority, the kernel evaluates the younger one first, and does not show which
// one that is.
func (ch *BaseChain) MayTranslateBefore(priority int32) bool {
	return ch.Type == "nat" && ch.Priority <= priority && ch.Uses > 0
}

// BaseChains returns the base chains of all tables that apply to packets of a family.
func BaseChains(conn *nft.Conn, family inet.Family) (list []BaseChain, err error) {
	for _, of := range []struct {
		keyword string
		number  uint8
	}{{family.Keyword(), family.Number()}, {"inet", unix.NFPROTO_INET}} {
		chains, err := conn.AllChains(of.number)
		if err != nil {
			return nil, fmt.Errorf("list chains of family %s: %w", of.keyword, err)
		}
		for _, ch := range chains {
			if ch.Type != "" {
				list = append(list, BaseChain{Family: of.keyword, ChainInfo: ch})
			}
		}
	}
	return list, nil
}
