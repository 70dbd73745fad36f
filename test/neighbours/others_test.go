//go:build neighbours

package neighbours

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// libvirt returns the default network of libvirt, with a guest.
func libvirt() neighbour {
	guest := netip.MustParseAddr("192.168.122.10")
	virsh := "virsh -q -c 'network:///system?mode=legacy'"
	return neighbour{
		name: "libvirt (default network, iptables)", version: "libvirtd --version 2>/dev/null | sed 's/.* //'",
		policy: "a guest reaches Services, and machines outside with the address of the node; clients do not reach the guest. The guest was a network namespace at the bridge",
		prepare: func(n *node) {
			n.serve(n.Client)
			n.unplug(n.container())
			n.sh("printf 'libvirt-dnsmasq:x:102:102::/:/bin/false\\nnobody:x:65534:65534::/:/bin/false\\n' >>/etc/passwd; mkdir -p /etc/libvirt/qemu/networks/autostart")
			n.sh("cat >/etc/libvirt/qemu/networks/default.xml <<'E'\n%s\nE\nln -s ../default.xml /etc/libvirt/qemu/networks/autostart/", `<network>
<name>default</name><uuid>9f9e5f4a-52b1-4c39-9e8f-0f2a9d3f3c11</uuid><bridge name='virbr0'/><forward/>
<ip address='192.168.122.1' netmask='255.255.255.0'><dhcp><range start='192.168.122.2' end='192.168.122.254'/></dhcp></ip>
</network>`)
		},
		install: func(n *node, _ bool) {
			n.daemon("libvirtd", virsh+" net-list | grep -q default")
			n.sh("ip link add vnet0 type veth peer name eth0 netns %[1]s; ip link set vnet0 master virbr0 up; ip netns exec %[1]s ip addr add %[2]s/24 dev eth0; "+
				"ip netns exec %[1]s ip link set eth0 up; ip netns exec %[1]s ip route add default via 192.168.122.1", n.container().Netns, guest)
			// The bridge has the spanning tree protocol.
			n.eventually("the port of the guest", func() error { _, err := n.try("bridge link show dev vnet0 | grep -q 'state forwarding'"); return err })
		},
		// The chain of libvirt's rules has a rule for each network, which a reload replaces.
		reload: func(n *node) {
			handle := "nft -a list chain ip filter LIBVIRT_FWI | grep 192.168.122.0/24"
			before, all := n.sh("%s", handle), n.rules()
			n.sh("kill -HUP $(cat /run/pid-libvirtd)")
			n.eventually("new rules", func() error {
				_, err := n.try(handle + " | grep -vqF '" + strings.Split(before, "\n")[0] + "'")
				if err == nil && n.rules() != all {
					err = errors.New("libvirt has not added all rules")
				}
				return err
			})
		},
		remove: func(n *node) {
			n.sh("ip link del vnet0; %s net-destroy default", virsh)
			n.end("libvirtd")
		},
		allowed: func(n *node) []check {
			return both("guest to outside, with the address of the node", n.container(), []netip.Addr{n.Client.IPv4}, backendPort, "client", n.Node.Addrs())
		},
		denied: func(n *node) []check {
			return both("client to guest", n.Client, []netip.Addr{guest}, backendPort, "-", [2]netip.Addr{})
		},
		services: fromContainer, through: func(n *node) []check { return overTCP(fromContainer(n)) },
		leaves: true, lossless: []string{stepInstall, stepRestart, stepRemove},
	}
}

// sshguard returns a program that bans the source of failed logins.
func sshguard() neighbour {
	// With a blacklist, the ban survives a restart.
	start := func(n *node, ban string) {
		// sshguard kills its process group.
		n.daemon("setsid sshguard", ban+"; nft list set ip sshguard attackers | grep -q 192.0.2.101 && nft list set ip6 sshguard attackers | grep -q 2001:db8::101")
	}
	stop := func(n *node) {
		n.end("setsid")
		// The program for the rules removes them twice.
		n.sh("while ps -eo stat,comm | grep -v ^Z | grep -q sshg-; do sleep 0.05; done")
	}
	return neighbour{
		name: "SSHGuard (nftables)", version: "sshguard -v | sed 's/^SSHGuard //'",
		policy: "a source of failed logins, which it bans, does not reach the node",
		limit:  "a banned source reaches Services, because SSHGuard's chain is at the hook input. Use [source ranges](source-ranges.md)",
		prepare: func(n *node) {
			n.sh("mkdir -p /var/lib/sshguard; touch /var/log/auth.log; cat >/etc/sshguard/sshguard.conf <<'E'\n%sE", lines("BACKEND=/usr/libexec/sshguard/sshg-fw-nft-sets", "FILES=/var/log/auth.log",
				"THRESHOLD=30", "BLOCK_TIME=600", "DETECTION_TIME=600", "IPV6_SUBNET=128", "IPV4_SUBNET=32", "BLACKLIST_FILE=30:/var/lib/sshguard/blacklist"))
		},
		install: func(n *node, _ bool) {
			start(n, `for ip in 192.0.2.101 2001:db8::101; do for i in 1 2 3 4; do echo "Nov 25 12:00:00 node sshd[77]: Invalid user test from $ip port 4711" >>/var/log/auth.log; done; done`)
		},
		reload:   func(n *node) { stop(n); start(n, "true") },
		remove:   stop,
		denied:   func(n *node) []check { return direct(n.banned(), n.Node, ownPort, "-", "banned source to node") },
		allowed:  func(n *node) []check { return direct(n.Client, n.Node, ownPort, "node", "client to node") },
		services: func(n *node) []check { return toLB(n.banned(), "*", "banned source to load-balancer IP") },
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}

// crowdSec returns CrowdSec's local API with decisions, and its bouncer, which bans the sources of these decisions.
func crowdSec() neighbour {
	const bouncer = "/etc/crowdsec/bouncers/crowdsec-firewall-bouncer.yaml"
	start := func(n *node, last string) {
		n.daemon("crowdsec-firewall-bouncer -c "+bouncer, "nft list set ip crowdsec crowdsec-blacklists | grep -qF "+last+" && nft list set ip6 crowdsec6 crowdsec6-blacklists | grep -q 2001:db8::101")
	}
	return neighbour{
		name: "CrowdSec (firewall bouncer, nftables)", version: "crowdsec -version 2>&1 | sed -n 's/.*version: v\\([0-9.]*\\).*/\\1/p'",
		set:    "`set-only: true`, and tables with a chain at the hook prerouting, so that bans apply to Services ([file](#crowdsec))",
		broken: []string{"banned source to load-balancer IP"},
		policy: "a source that CrowdSec's local API bans reaches neither the node nor Services. The bouncer was Debian's (0.0.25). The agent, which detects attacks, was not run",
		prepare: func(n *node) {
			// The central API, which is on the internet, is off. Debian's scripts ask for the other values.
			n.sh("sed -i 's/daemonize: true/daemonize: false/; s/log_media: file/log_media: stdout/; /online_client/,+1d' /etc/crowdsec/config.yaml; cscli machines add --auto --force")
			n.sh("sed -i 's/${BACKEND}/nftables/; s/${API_KEY}/secret/; s/daemonize: true/daemonize: false/; s/log_mode: file/log_mode: stdout/; s/update_frequency: 10s/update_frequency: 1s/' %s", bouncer)
			n.daemon("crowdsec -c /etc/crowdsec/config.yaml -no-cs", "cscli decisions list")
			n.sh("cscli bouncers add node -k secret; cscli decisions add --ip 192.0.2.101; cscli decisions add --ip 2001:db8::101")
		},
		install: func(n *node, configured bool) {
			if configured {
				page, err := os.ReadFile(filepath.Join("..", "..", Results.Page))
				lab.Must(n.t, err)
				_, rules, _ := strings.Cut(string(page), "```nft\n")
				rules, _, found := strings.Cut(rules, "```")
				if !found {
					n.t.Fatalf("%s has no file for CrowdSec", Results.Page)
				}
				n.sh("sed -i 's/set-only: false/set-only: true/' %s; nft -f - <<'E'\n%sE", bouncer, rules)
			}
			start(n, "192.0.2.101")
		},
		reload: func(n *node) {
			n.end("crowdsec-firewall-bouncer")
			n.sh("cscli decisions add --ip 192.0.2.200")
			start(n, "192.0.2.200")
		},
		remove: func(n *node) {
			n.end("crowdsec-firewall-bouncer")
			n.sh("nft delete table ip crowdsec; nft delete table ip6 crowdsec6")
		},
		denied:   func(n *node) []check { return direct(n.banned(), n.Node, ownPort, "-", "banned source to node") },
		allowed:  func(n *node) []check { return direct(n.Client, n.Node, ownPort, "node", "client to node") },
		services: func(n *node) []check { return toLB(n.banned(), "-", "banned source to load-balancer IP") },
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
