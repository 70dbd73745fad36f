package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// earlier reports a chain of another program that may decide about packets to Services before the rules of the program.
func (c *Config) earlier(ch *read.BaseChain) view.Finding {
	return view.NewFinding(view.Warning, view.OtherChainFirst, fmt.Sprintf("table %s %s, chain %s", ch.Family, ch.Table, ch.Name),
		ch.String()+" is evaluated before the rules of Services",
		"if one of its rules translates, redirects, marks or drops a packet to a Service, this rule decides. "+
			"kube-nftproxy trace --live shows the path of a packet",
		c.on(fmt.Sprintf("nft list chain %s %s %s shows its rules. To let Services decide first, configure its "+
			"program to use the priority dstnat (-100)",
			ch.Family, ch.Table, ch.Name)),
		"only the program that made the chain: its rules no longer affect packets to Services")
}

// chainsBefore returns the chains of other tables that may translate packets before the rules of Services.
func (c *Config) chainsBefore() (list []read.BaseChain, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	chains, err := read.BaseChains(conn, c.Families...)
	for i := range chains {
		ch := &chains[i]
		before := ch.Hook == unix.NF_INET_PRE_ROUTING || ch.Hook == unix.NF_INET_LOCAL_OUT
		if before && ch.Table != c.Table && ch.MayTranslateBefore(c.First) {
			list = append(list, *ch)
		}
	}
	return list, err
}
