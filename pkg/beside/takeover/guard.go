package takeover

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// guardChain is the chain in which the kubelet and kube-proxy drop packets of the network to 127.0.0.0/8.
const guardChain = "KUBE-FIREWALL"

// LoopbackGuarded reports whether the chain that keeps packets of the network from 127.0.0.0/8 has rules, in nftables
// or in iptables-legacy. It does not read missing tables of iptables-legacy, because this would create them.
func LoopbackGuarded() (guarded bool, err error) {
	conn, err := nft.Open()
	if err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	rules, err := conn.Rules(inet.IPv4.Number(), "filter")
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return false, err
	case slices.ContainsFunc(rules, func(r nft.RuleInfo) bool { return r.Chain == guardChain }):
		return true, nil
	}
	err = eachLegacy(func(s *xtables, table string) error {
		if table != "filter" {
			return nil
		}
		_, c, err := s.content(table)
		guarded = guarded || err == nil &&
			slices.ContainsFunc(c.rules, func(r rule) bool { return r.chain == guardChain })
		return err
	})
	return guarded, err
}
