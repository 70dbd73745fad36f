//go:build neighbours

package neighbours

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// direct returns TCP checks from a client to a pod, and to a server of the node, in both families. Without an answer, server is "-".
func direct(from, to *lab.Host, port uint16, server, name string) (list []check) {
	for _, addr := range to.Addrs() {
		list = append(list, check{name: name, from: from, proto: inet.TCP, to: netip.AddrPortFrom(addr, port), server: server})
	}
	return list
}

// closed are the packets that a firewall denies to all clients.
func closed(n *node) []check {
	return append(direct(n.Client, n.Pods[0], backendPort, "-", "client to pod, denied"), direct(n.Client, n.Node, ownPort, "-", "client to node, denied")...)
}

// toLB are packets of a client to load-balancer IPs.
func toLB(from *lab.Host, server, name string) (list []check) {
	for _, addr := range lbIPs {
		list = append(list, check{name: name, from: from, proto: inet.TCP, to: netip.AddrPortFrom(addr, 80), server: server})
	}
	return list
}

// banBoth denies a client everything.
func banBoth(n *node) []check {
	return append(direct(n.banned(), n.Node, ownPort, "-", "denied client to node"), toLB(n.banned(), "-", "denied client to load-balancer IP")...)
}

const closedText = "clients reach neither pods nor other ports of the node"

// firewalls are programs that filter packets.
var firewalls = []neighbour{
	{
		name: "firewalld", version: "firewall-offline-cmd --version",
		set:    "`firewall-cmd --permanent --add-port=10256/tcp`, and the health check node ports of Services with policy Local; keep the default `StrictForwardPorts=no` (by its documentation, not tested)",
		broken: []string{"health check node port"},
		policy: closedText + "; a source in zone `drop` does not reach the node", limit: "a source in zone `drop` reaches Services, because firewalld accepts translated packets before it looks at zones. Use " +
			"[source ranges](source-ranges.md)",
		install: func(n *node, configured bool) {
			n.sh("dbus-uuidgen --ensure; mkdir -p /run/dbus /var/lib/dbus")
			n.daemon("dbus-daemon --system --nofork", "dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames")
			if configured {
				n.sh("firewall-offline-cmd --add-port=10256/tcp --add-port=32100/tcp")
			}
			n.sh("firewall-offline-cmd --zone=drop --add-source=192.0.2.101; firewall-offline-cmd --zone=drop --add-source=2001:db8::101")
			n.daemon("firewalld --nofork --nopid", "firewall-cmd --state && nft list chain inet firewalld filter_FORWARD")
		},
		reload: func(n *node) { n.sh("firewall-cmd --reload") },
		remove: func(n *node) {
			n.sh("kill -TERM $(cat /run/pid-firewalld); while nft list table inet firewalld >/dev/null 2>&1; do sleep 0.05; done")
		},
		denied: func(n *node) []check {
			return append(closed(n), direct(n.banned(), n.Node, ownPort, "-", "zone drop to node")...)
		},
		services: func(n *node) []check { return toLB(n.banned(), "*", "zone drop to load-balancer IP") },
	},
	{
		name: "ufw", version: "ufw --version | sed -n 's/^ufw //p'",
		set: "the rules for translated connections in `before.rules` and `before6.rules` ([findings](findings.md#a-chain-that-drops-forwarded-packets)); " +
			"`ufw allow 10256/tcp`, and the health check node ports",
		broken: []string{
			"cluster IP, from a pod", "health check node port", "load-balancer IP", "load-balancer IP with policy Local", "node port", "node port with policy Local",
		},
		policy: closedText,
		prepare: func(n *node) {
			n.sh("cp /usr/share/ufw/iptables/*.rules /usr/share/ufw/ufw.conf /usr/share/ufw/*.init /etc/ufw/")
		},
		install: func(n *node, configured bool) {
			if configured {
				n.sh(`sed -i '/^COMMIT/i -A ufw-before-forward -m conntrack --ctstate DNAT -j ACCEPT' /etc/ufw/before.rules
sed -i '/^COMMIT/i -A ufw6-before-forward -m conntrack --ctstate DNAT -j ACCEPT' /etc/ufw/before6.rules
ufw allow 10256/tcp; ufw allow 32100/tcp`)
			}
			n.sh("ufw --force enable")
		},
		reload: func(n *node) { n.sh("ufw reload") },
		remove: func(n *node) { n.sh("ufw disable") },
		denied: closed, leaves: true,
	},
	iptables("iptables-nft", "xtables-nft-multi"),
	iptables("iptables-legacy", "xtables-legacy-multi"),
	{
		name: "nftables.service", version: "nft --version | sed 's/^nftables v//; s/ .*//'",
		set:    "`destroy table inet filter` instead of `flush ruleset` in `/etc/nftables.conf`",
		policy: closedText + "; a denied client does not reach Services",
		install: func(n *node, configured bool) {
			first := "flush ruleset"
			if configured {
				first = "destroy table inet filter"
			}
			n.sh("cat >/etc/nftables.conf <<'E'\n%s\n%s\nE\nnft -f /etc/nftables.conf", first, `table inet filter {
 chain input {
  type filter hook input priority filter; policy drop;
  ct state { established, related } accept
  iif lo accept
  meta l4proto { icmp, ipv6-icmp } accept
  tcp dport { 10256, 32100 } accept
 }
 chain forward {
  type filter hook forward priority filter; policy drop;
  ip saddr 192.0.2.101 drop
  ip6 saddr 2001:db8::101 drop
  ct state { established, related } accept
  ct status dnat accept
 }
}`)
		},
		reload:   func(n *node) { n.sh("nft -f /etc/nftables.conf") },
		remove:   func(n *node) { n.sh("nft delete table inet filter") },
		denied:   func(n *node) []check { return append(closed(n), banBoth(n)...) },
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	},
	{
		name: "fail2ban", version: "fail2ban-server --version | sed 's/^Fail2Ban v//'",
		set:    "`banaction = nftables[type=allports, chain_hook=prerouting, chain_priority=-150]`, so that bans apply to Services",
		broken: []string{"banned client to load-balancer IP"},
		policy: "a banned client reaches neither the node nor Services",
		install: func(n *node, configured bool) {
			action := "nftables[type=allports]"
			if configured {
				action = "nftables[type=allports, chain_hook=prerouting, chain_priority=-150]"
			}
			n.sh("rm -rf /etc/fail2ban/jail.d/*; mkdir -p /run/fail2ban; touch /var/log/own.log; cat >/etc/fail2ban/jail.local <<'E'\n%sE", lines(
				"[own]", "enabled = true", "filter = sshd", "backend = polling", "logpath = /var/log/own.log", "bantime = 10m", "banaction = "+action, "action = %(banaction)s"))
			n.daemon("fail2ban-server -f -s /run/fail2ban/s -p /run/fail2ban/p --loglevel INFO start", "fail2ban-client -s /run/fail2ban/s status own")
			n.sh("fail2ban-client -s /run/fail2ban/s set own banip 192.0.2.101 2001:db8::101")
			n.eventually("the ban", func() error { _, err := n.try("nft list ruleset | grep -q 2001:db8::101"); return err })
		},
		reload: func(n *node) { n.sh("fail2ban-client -s /run/fail2ban/s reload") },
		remove: func(n *node) {
			n.sh("fail2ban-client -s /run/fail2ban/s stop; while nft list table inet f2b-table >/dev/null 2>&1; do sleep 0.05; done")
		},
		denied:   func(n *node) []check { return direct(n.banned(), n.Node, ownPort, "-", "banned client to node") },
		services: func(n *node) []check { return toLB(n.banned(), "-", "banned client to load-balancer IP") },
		allowed:  func(n *node) []check { return direct(n.Client, n.Node, ownPort, "node", "client to node") },
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	},
}

// iptables returns an administrator who loads rules with iptables-restore.
func iptables(name, multi string) neighbour {
	load := func(n *node) {
		for _, f := range []struct{ restore, banned, icmp string }{{"iptables-restore", "192.0.2.101", "icmp"}, {"ip6tables-restore", "2001:db8::101", "ipv6-icmp"}} {
			n.sh("%s %s <<'E'\n%sE", multi, f.restore, lines("*filter", ":INPUT DROP", ":FORWARD DROP", ":OUTPUT ACCEPT",
				"-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-A INPUT -i lo -j ACCEPT", "-A INPUT -p "+f.icmp+" -j ACCEPT",
				"-A INPUT -p tcp -m multiport --dports 10256,32100 -j ACCEPT",
				"-A FORWARD -s "+f.banned+" -j DROP", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", "COMMIT",
				"*nat", ":PREROUTING ACCEPT", ":POSTROUTING ACCEPT", ":OUTPUT ACCEPT", "-A POSTROUTING -d "+f.banned+" -p tcp --dport 7 -j MASQUERADE", "COMMIT"))
		}
	}
	return neighbour{
		name: name, version: multi + " iptables --version | sed 's/^iptables v//; s/ .*//'",
		policy:  closedText + "; a denied client does not reach Services",
		install: func(n *node, _ bool) { load(n) },
		reload:  load,
		remove: func(n *node) {
			for _, f := range []string{"iptables", "ip6tables"} {
				n.sh("for c in INPUT FORWARD; do %[1]s %[2]s -P $c ACCEPT; done; for t in filter nat; do %[1]s %[2]s -t $t -F; done", multi, f)
			}
		},
		denied: func(n *node) []check { return append(closed(n), banBoth(n)...) }, leaves: true,
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
