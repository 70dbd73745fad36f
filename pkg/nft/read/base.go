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

// Families are nft's keywords for the families of tables that apply to IP packets. numbers are the kernel's numbers.
var (
	Families = []string{"ip", "ip6", "inet"}
	numbers  = map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "inet": unix.NFPROTO_INET}
)

// Chains returns the chains of all tables of a family, which is nft's keyword.
func Chains(conn *nft.Conn, family string) ([]nft.ChainInfo, error) {
	list, err := conn.AllChains(numbers[family])
	if err != nil {
		return nil, fmt.Errorf("list chains of family %s: %w", family, err)
	}
	return list, nil
}

// BaseChains returns the base chains of all tables that apply to packets of the families.
func BaseChains(conn *nft.Conn, families ...inet.Family) (list []BaseChain, err error) {
	var keywords []string
	for _, f := range families {
		keywords = append(keywords, f.Keyword())
	}
	for _, keyword := range append(keywords, "inet") {
		chains, err := Chains(conn, keyword)
		if err != nil {
			return nil, err
		}
		for _, ch := range chains {
			if ch.Type != "" {
				list = append(list, BaseChain{Family: keyword, ChainInfo: ch})
			}
		}
	}
	return list, nil
}
