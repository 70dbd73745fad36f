//go:build neighbours

package neighbours

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// The addresses of the Service far, whose endpoint is on the second node.
var (
	farIPs   = []netip.Addr{netip.MustParseAddr("10.96.0.22"), netip.MustParseAddr("fd00:10:96::22")}
	farLBIPs = []netip.Addr{netip.MustParseAddr("203.0.113.12"), netip.MustParseAddr("2001:db8:1::12")}
	// passedLBIPs are those of the Service passed, with direct server return and the same endpoint.
	passedLBIPs = []netip.Addr{netip.MustParseAddr("203.0.113.13"), netip.MustParseAddr("2001:db8:1::13")}
)

// second starts a machine that is another node. Its network with this node is 198.51.100.0/24 and 2001:db8:64::/64.
func (n *node) second() *machine {
	n.t.Helper()
	host := n.Clients[2]
	m := &machine{t: n.t, host: host, dir: filepath.Join(n.dir, "second")}
	lab.Must(n.t, os.Mkdir(m.dir, 0o700))
	m.mount()
	for i, on := range []*machine{&n.machine, m} {
		device := []string{host.Device, "eth0"}[i]
		on.sh("ip addr add 198.51.100.%[1]d/24 dev %[2]s; ip -6 addr add 2001:db8:64::%[1]d/64 dev %[2]s nodad", i+1, device)
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		lab.Must(n.t, host.Sysctl(key, "1"))
	}
	return m
}

// serve starts the servers of endpoints.
func (n *node) serve(hosts ...*lab.Host) {
	n.t.Helper()
	for _, h := range hosts {
		lab.Must(n.t, lab.Err(h.ServeEcho(backendPort)))
		lab.Must(n.t, lab.Err(h.Serve(inet.UDP, backendPort)))
	}
}

// offer adds the Service far with its endpoint.
func (n *node) offer(endpoint [2]netip.Addr) {
	n.t.Helper()
	s := loadBalancer("far", farLBIPs, 30070)
	s.Spec.ClusterIP, s.Spec.ClusterIPs = farIPs[0].String(), []string{farIPs[0].String(), farIPs[1].String()}
	if err := world.Write(n.manifests(), "far", append(world.Slices("far", backendPort, world.Endpoints(endpoint, world.OtherNode)), s)...); err != nil {
		n.t.Fatal(err)
	}
}

// passedPort is the node port of the Service passed.
const passedPort = 30071

// pass adds the Service passed, whose replies leave from the second node: kube-nftproxy runs there, too. The client has
// a link to the second node, because this node would drop replies with its own address as the source.
func (n *node) pass(on *machine, endpoint [2]netip.Addr) {
	n.t.Helper()
	n.Client.Run(n.t, "ip", "link", "add", "direct", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name",
		"direct", "address", "02:00:00:00:00:02", "netns", on.host.Netns)
	n.Client.Run(n.t, "ip", "link", "set", "direct", "up")
	on.sh("ip link set direct up")
	for _, a := range n.Client.Addrs() {
		on.sh("ip route add %[1]s dev direct; ip neigh add %[1]s lladdr 02:00:00:00:00:01 dev direct nud permanent", a)
	}
	n.offerDirect(endpoint, world.OtherNode)
	other := world.Node()
	other.Name = world.OtherNode
	for i := range other.Status.Addresses {
		other.Status.Addresses[i].Address = underlays[1][i]
	}
	lab.Must(n.t, world.Write(n.manifests(), "other", other))
	n.startOn(on, world.OtherNode)
}

// offerDirect adds the Service passed, with direct server return at load-balancer IPs and node ports.
func (n *node) offerDirect(endpoint [2]netip.Addr, on string) {
	n.t.Helper()
	s := loadBalancer("passed", passedLBIPs, passedPort)
	s.Annotations = map[string]string{"kube-nftproxy.io/forwarding-mode": "dsr"}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.23", []string{"10.96.0.23", "fd00:10:96::23"}
	list := append(world.Slices("passed", backendPort, world.Endpoints(endpoint, on)), s)
	lab.Must(n.t, world.Write(n.manifests(), "passed", list...))
	networks := "198.51.100.0/24,2001:db8:64::/64"
	for _, a := range n.Node.Addrs() {
		networks += "," + netip.PrefixFrom(a, a.BitLen()).String()
	}
	n.args = []string{"--direct-server-return", "--direct-server-return-node-cidrs=" + networks}
}

// both returns a check for each family and for TCP and UDP.
func both(name string, from *lab.Host, to []netip.Addr, port uint16, server string, sources [2]netip.Addr) (list []check) {
	for i, addr := range to {
		for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
			list = append(list, check{name: name, from: from, proto: proto, to: netip.AddrPortFrom(addr, port), server: server, source: sources[i]})
		}
	}
	return list
}

// overTCP returns the checks over TCP.
func overTCP(all []check) (list []check) {
	for _, c := range all {
		if c.proto == inet.TCP {
			list = append(list, c)
		}
	}
	return list
}

// wireguard returns a VPN of which wg-quick makes the default route. The second node is the other end.
func wireguard() neighbour {
	tunnel := [2]netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd00:9::2")}
	far := [2]netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1")}
	behind := []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8:18::1")}
	configure := func(m *machine, key string, text ...string) {
		text = append([]string{"[Interface]", "PrivateKey = " + key}, text...)
		m.sh("mkdir -p /etc/wireguard; umask 077; cat >/etc/wireguard/wg0.conf <<'E'\n%sE", lines(text...))
	}
	services := func(n *node) []check {
		list := both("load-balancer IP, to an endpoint in the tunnel", n.Client, farLBIPs, 80, "client-2", [2]netip.Addr{})
		list = append(list, both("cluster IP, to an endpoint in the tunnel", n.caller(), farIPs, 80, "client-2", [2]netip.Addr{})...)
		list = append(list, both("load-balancer IP, from the tunnel", n.Clients[2], lbIPs, 80, "*", [2]netip.Addr{})...)
		return append(list, both("load-balancer IP with policy Local, from the tunnel", n.Clients[2], localIPs, 80, "pod-0", far)...)
	}
	return neighbour{
		name: "WireGuard (wg-quick, wireguard-go)", version: "wg --version | sed 's/^wireguard-tools v//; s/ .*//'",
		set: "`FwMark` without the bit 0x4000, such as `FwMark = 4242`. kube-nftproxy masquerades packets with this bit, and the default 51820 has it. So the packets of the tunnel " +
			"get another source port, and the tunnel stalls when the rules are removed. Also `PostUp = ip addrlabel add prefix POD_CIDR label 1` with the IPv6 CIDR of pods, if pods and the tunnel have unique local addresses (`fd00::/8`) and the node " +
			"has a global one. Otherwise the kernel masquerades connections to pods with the address of the tunnel, and wg-quick's rules drop the answers",
		broken: []string{"cluster IP, from the node", "load-balancer IP", "load-balancer IP, from the tunnel", "node port"},
		policy: "the tunnel is the default route, by a mark and policy routing; only the tunnel reaches its address; Services have an endpoint and clients in the tunnel. " +
			"The kernel of the test lacks WireGuard, so wireguard-go carried the packets",
		prepare: func(n *node) {
			other := n.second()
			n.serve(n.Clients[2])
			n.offer(far)
			var private, public [2]string
			for i := range private {
				private[i] = n.sh("wg genkey")
				public[i] = n.sh("echo %s | wg pubkey", private[i])
			}
			configure(&n.machine, private[0], "Address = 10.9.0.2/24, fd00:9::2/64", "FwMark = 4242",
				"PostUp = [ ! -e /etc/wireguard/label ] || ip addrlabel add prefix fd00:10:244::/48 label 1",
				"PostDown = [ ! -e /etc/wireguard/label ] || ip addrlabel del prefix fd00:10:244::/48 label 1",
				"[Peer]", "PublicKey = "+public[1], "Endpoint = 198.51.100.2:51820", "AllowedIPs = 0.0.0.0/0, ::/0", "PersistentKeepalive = 1")
			configure(other, private[1], "Address = 10.9.0.1/24, fd00:9::1/64", "ListenPort = 51820",
				"[Peer]", "PublicKey = "+public[0], "AllowedIPs = 10.9.0.2/32, fd00:9::2/128, 203.0.113.0/24, 2001:db8:1::/64, 10.244.0.0/16, fd00:10:244::/48")
			other.sh("ip addr add 198.18.0.1/32 dev lo; ip -6 addr add 2001:db8:18::1/128 dev lo; wg-quick up wg0")
		},
		install: func(n *node, configured bool) {
			if configured {
				n.sh("touch /etc/wireguard/label")
			}
			n.sh("wg-quick up wg0")
		},
		reload: func(n *node) { n.sh("bash -c 'wg syncconf wg0 <(wg-quick strip wg0)'") },
		remove: func(n *node) { n.sh("wg-quick down wg0") },
		allowed: func(n *node) []check {
			return both("node to the default route", n.Node, behind, backendPort, "client-2", tunnel)
		},
		denied: func(n *node) (list []check) {
			for _, addr := range tunnel {
				list = append(list, check{name: "client to the address of the tunnel", from: n.Client, proto: inet.TCP, to: netip.AddrPortFrom(addr, ownPort), server: "-"})
			}
			return list
		},
		services: services, through: func(n *node) []check { return overTCP(services(n)) },
		lossless: []string{stepRestart},
	}
}
