//go:build neighbours

package neighbours

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// The Services of the neighbours that connect nodes. far has an endpoint on the second node, near one on this node, with policy Local.
var (
	farIPs    = []netip.Addr{netip.MustParseAddr("10.96.0.22"), netip.MustParseAddr("fd00:10:96::22")}
	farLBIPs  = []netip.Addr{netip.MustParseAddr("203.0.113.12"), netip.MustParseAddr("2001:db8:1::12")}
	nearIPs   = []netip.Addr{netip.MustParseAddr("10.96.0.23"), netip.MustParseAddr("fd00:10:96::23")}
	nearLBIPs = []netip.Addr{netip.MustParseAddr("203.0.113.13"), netip.MustParseAddr("2001:db8:1::13")}
)

// second starts a machine that is another node. Its network with this node is 198.51.100.0/24 and 2001:db8:64::/64.
func (n *node) second() *machine {
	n.t.Helper()
	host := n.Clients[2]
	m := &machine{t: n.t, host: host, dir: filepath.Join(n.dir, "second")}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	m.mount()
	for i, on := range []*machine{&n.machine, m} {
		device := []string{host.Device, "eth0"}[i]
		on.sh("ip addr add 198.51.100.%[1]d/24 dev %[2]s; ip -6 addr add 2001:db8:64::%[1]d/64 dev %[2]s nodad", i+1, device)
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := host.Sysctl(key, "1"); err != nil {
			n.t.Fatal(err)
		}
	}
	return m
}

// serve starts the servers of endpoints.
func (n *node) serve(hosts ...*lab.Host) {
	n.t.Helper()
	for _, h := range hosts {
		if _, err := h.ServeEcho(backendPort); err != nil {
			n.t.Fatal(err)
		}
		if _, err := h.Serve(inet.UDP, backendPort); err != nil {
			n.t.Fatal(err)
		}
	}
}

// offer adds the Services far and near with their endpoints; near only if its endpoint is valid.
func (n *node) offer(far, near [2]netip.Addr) {
	n.t.Helper()
	s := loadBalancer("far", farLBIPs, 30070)
	s.Spec.ClusterIP, s.Spec.ClusterIPs = farIPs[0].String(), []string{farIPs[0].String(), farIPs[1].String()}
	objects := append(world.Slices("far", backendPort, world.Endpoints(far, world.OtherNode)), s)
	if near[0].IsValid() {
		s := loadBalancer("near", nearLBIPs, 30071)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = nearIPs[0].String(), []string{nearIPs[0].String(), nearIPs[1].String()}
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32101
		objects = append(append(objects, world.Slices("near", backendPort, world.Endpoints(near, world.NodeName))...), s)
	}
	if err := world.Write(n.manifests(), "far", objects...); err != nil {
		n.t.Fatal(err)
	}
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

// put stores a value in etcd on the node.
func (n *node) put(key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": text})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
		return n.Node.Dial(ctx, inet.TCP, netip.MustParseAddrPort(to))
	}}}
	got, err := client.Post("http://192.0.2.1:2379/v3/kv/put", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("put %s: %s", key, got.Status)
	}
	return nil
}

// get is a command that succeeds as soon as a server answers.
func get(url string) string {
	return fmt.Sprintf(`python3 -c "import urllib.request as u; u.urlopen('%s')"`, url)
}

// The pods that flannel connects.
var (
	flannelPods    = [2]netip.Addr{netip.MustParseAddr("10.244.8.2"), netip.MustParseAddr("fd00:10:244:8::2")}
	flannelRemotes = [2]netip.Addr{netip.MustParseAddr("10.244.9.2"), netip.MustParseAddr("fd00:10:244:9::2")}
)

// flannel returns flannel with a backend, and subnets from etcd. The plugin bridge has the configuration that flannel's own plugin gives it.
func flannel(backend, firewall string) neighbour {
	start := func(m *machine, number int) {
		m.daemon(fmt.Sprintf("flanneld --etcd-endpoints=http://192.0.2.1:2379 --iface=198.51.100.%[1]d --public-ip=198.51.100.%[1]d --public-ipv6=2001:db8:64::%[1]d "+
			"--ip-masq --healthz-ip=127.0.0.1 --healthz-port=8081", number), get("http://127.0.0.1:8081/readyz"))
	}
	plug := func(m *machine, subnet int, verb string, pod *lab.Host) {
		m.sh(`. /run/flannel/subnet.env; mkdir -p /etc/cni/net.d; cat >/etc/cni/net.d/10-flannel.conflist <<E
{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "mtu": $FLANNEL_MTU,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.%[1]d.0/24"}], [{"subnet": "fd00:10:244:%[1]d::/64"}]]}}]}
E
CNI_PATH=/opt/programs NETCONFPATH=/etc/cni/net.d cnitool %[2]s cbr0 /run/netns/%[3]s`, subnet, verb, pod.Netns)
	}
	services := func(n *node) []check {
		list := both("cluster IP, from a pod of flannel to the other node", n.container(), farIPs, 80, "remote-1", flannelPods)
		list = append(list, both("cluster IP, from another pod to the other node", n.caller(), farIPs, 80, "remote-1", [2]netip.Addr{})...)
		list = append(list, both("cluster IP, from the node to the other node", n.Node, farIPs, 80, "remote-1", [2]netip.Addr{})...)
		list = append(list, both("load-balancer IP, to the other node", n.Client, farLBIPs, 80, "remote-1", [2]netip.Addr{})...)
		return append(list, both("load-balancer IP with policy Local, to a pod of flannel", n.Client, nearLBIPs, 80, "pod-3", n.Client.Addrs())...)
	}
	return neighbour{
		name: fmt.Sprintf("flannel (%s, %s)", backend, firewall), version: "flanneld --version 2>&1 | sed 's/^v//'",
		policy: "pods of two nodes reach each other, directly and by Services, with their own addresses; flannel masquerades a pod that calls a host outside; " +
			"a client's address reaches a pod of flannel through policy Local. Subnets came from etcd",
		prepare: func(n *node) {
			other := n.second()
			n.unplug(n.container())
			n.unplug(n.Remotes[1])
			n.serve(n.Remotes[1], n.Client)
			n.offer(flannelRemotes, flannelPods)
			n.daemon("etcd --data-dir=/var/lib/etcd --unsafe-no-fsync --log-level=error --listen-client-urls=http://192.0.2.1:2379 --advertise-client-urls=http://192.0.2.1:2379 "+
				"--listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=default=http://127.0.0.1:2380", get("http://192.0.2.1:2379/health"))
			const prefix = "/coreos.com/network/"
			values := map[string]any{prefix + "config": map[string]any{"EnableIPv4": true, "EnableIPv6": true, "EnableNFTables": firewall == "nftables",
				"Network": "10.244.0.0/16", "IPv6Network": "fd00:10:244::/48", "Backend": map[string]string{"Type": backend}}}
			for i, subnet := range []int{8, 9} {
				key := fmt.Sprintf("%ssubnets/10.244.%[2]d.0-24&fd00:10:244:%[2]d::-64", prefix, subnet)
				values[key] = map[string]string{"PublicIP": fmt.Sprintf("198.51.100.%d", i+1), "PublicIPv6": fmt.Sprintf("2001:db8:64::%d", i+1)}
			}
			for key, value := range values {
				if err := n.put(key, value); err != nil {
					n.t.Fatal(err)
				}
			}
			start(other, 2)
			plug(other, 9, "add", n.Remotes[1])
		},
		install: func(n *node, _ bool) { start(&n.machine, 1); plug(&n.machine, 8, "add", n.container()) },
		reload:  func(n *node) { n.end("flanneld"); start(&n.machine, 1) },
		remove: func(n *node) {
			plug(&n.machine, 8, "del", n.container())
			n.end("flanneld")
			n.sh(`for d in cni0 flannel.1 flannel-v6.1; do ip link del $d; done
ip route del 10.244.9.0/24; ip -6 route del fd00:10:244:9::/64; nft delete table ip flannel-ipv4; nft delete table ip6 flannel-ipv6
for f in iptables ip6tables; do $f -t nat -F; $f -F; done; true`)
		},
		allowed: func(n *node) []check {
			outside := n.Client.Addrs()
			list := both("pod to pod of the other node", n.container(), flannelRemotes[:], backendPort, "remote-1", flannelPods)
			list = append(list, both("pod of the other node to pod", n.Remotes[1], flannelPods[:], backendPort, "pod-3", flannelRemotes)...)
			return append(list, both("pod to a host outside, masqueraded", n.container(), outside[:], backendPort, "client", n.Node.Addrs())...)
		},
		services: services, through: func(n *node) []check { return overTCP(services(n)) },
		leaves: true, lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
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
		set: "`FwMark` without the bit 0x4000, such as `FwMark = 4242`: the default 51820 has the bit, by which kube-nftproxy, as kube-proxy, masquerades a packet. So the packets of the tunnel " +
			"get another source port, and the tunnel stalls when the rules are removed. Also `PostUp = ip addrlabel add prefix POD_CIDR label 1` with the IPv6 CIDR of pods, if pods and the tunnel have unique local addresses (`fd00::/8`) and the node " +
			"has a global one. Otherwise the kernel masquerades connections to pods with the address of the tunnel, and wg-quick's rules drop the answers",
		broken: []string{"cluster IP, from the node", "load-balancer IP", "load-balancer IP, from the tunnel", "node port"},
		policy: "the tunnel is the default route, by a mark and policy routing; only the tunnel reaches its address; Services have an endpoint and clients in the tunnel. " +
			"The kernel of the test lacks WireGuard, so wireguard-go carried the packets",
		prepare: func(n *node) {
			other := n.second()
			n.serve(n.Clients[2])
			n.offer(far, [2]netip.Addr{})
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
