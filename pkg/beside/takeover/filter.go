package takeover

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// filter is the table of iptables that accepts and drops packets.
const filter = "filter"

// LegacyForwardDrops returns the backends, iptables-legacy or ip6tables-legacy, in which chain FORWARD of table
// filter has the policy drop.
func LegacyForwardDrops() (commands []string, err error) {
	err = readLegacy([]string{filter}, func(command string, c *content) {
		drops := func(ch chain) bool { return ch.builtin && ch.name == "FORWARD" && ch.drops }
		if slices.ContainsFunc(c.chains, drops) {
			commands = append(commands, command)
		}
	})
	return commands, err
}

// guardChain is the chain in which the kubelet and kube-proxy drop packets of the network to 127.0.0.0/8.
const guardChain = "KUBE-FIREWALL"

// LoopbackGuarded reports whether the chain that keeps packets of the network from 127.0.0.0/8 has rules, in nftables
// or in iptables-legacy.
func LoopbackGuarded() (guarded bool, err error) {
	conn, err := nft.Open()
	if err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	rules, err := conn.Rules(inet.IPv4.Number(), filter)
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return false, err
	case slices.ContainsFunc(rules, func(r nft.RuleInfo) bool { return r.Chain == guardChain }):
		return true, nil
	}
	err = readLegacy([]string{filter}, func(_ string, c *content) {
		guarded = guarded || slices.ContainsFunc(c.rules, func(r rule) bool { return r.chain == guardChain })
	})
	return guarded, err
}
