//go:build neighbours

package neighbours

import (
	"fmt"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// networkPolicies returns rules at the hook of kube-network-policies, which decide as a policy for the endpoints would.
func networkPolicies() neighbour {
	load := func(n *node) {
		var endpoints, from [2]string
		for i := range inet.Families {
			endpoints[i] = fmt.Sprintf("%s, %s, %s", n.Pods[0].Addrs()[i], n.Pods[1].Addrs()[i], n.Remotes[0].Addrs()[i])
			from[i] = fmt.Sprintf("%s, %s", n.banned().Addrs()[i], n.container().Addrs()[i])
		}
		n.sh("nft -f - <<'E'\n%s\nE", fmt.Sprintf(`table inet kube-network-policies
delete table inet kube-network-policies
table inet kube-network-policies {
 set podips-v4 { type ipv4_addr; elements = { %s } }
 set podips-v6 { type ipv6_addr; elements = { %s } }
 chain postrouting {
  type filter hook postrouting priority srcnat - 5;
  meta l4proto icmpv6 accept
  meta skuid 0 accept
  ct state established,related accept
  ip daddr @podips-v4 ip saddr { %s } drop
  ip6 daddr @podips-v6 ip6 saddr { %s } drop
 }
}`, endpoints[0], endpoints[1], from[0], from[1]))
	}
	return neighbour{
		name: "rules at the hook of kube-network-policies", version: "nft --version | sed 's/^nftables v//; s/ .*//'",
		policy: "a denied client reaches the endpoints neither directly, nor by load-balancer IPs, nor by node ports; a denied pod does not reach them by cluster IPs. " +
			"The program itself was not run: it needs `nft_queue`, which the kernel of the test lacks",
		install: func(n *node, _ bool) { load(n) },
		reload:  load,
		remove:  func(n *node) { n.sh("nft delete table inet kube-network-policies") },
		denied: func(n *node) []check {
			list := append(direct(n.banned(), n.Pods[0], backendPort, "-", "denied client to pod"), toLB(n.banned(), "-", "denied client to load-balancer IP")...)
			list = append(list, direct(n.banned(), n.Node, nodePort, "-", "denied client to node port")...)
			for _, to := range clusterIPs {
				list = append(list, check{name: "denied pod to cluster IP", from: n.container(), proto: inet.TCP, to: netip.AddrPortFrom(to, 80), server: "-"})
			}
			return list
		},
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
