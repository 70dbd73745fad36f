//go:build neighbours

package neighbours

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The pod CIDRs of the nodes, and the address of flannel's etcd. The pods of the lab are in those of the first.
var (
	podCIDRs  = [2][2]string{{"10.244.0.1/24", "fd00:10:244::1/64"}, {"10.244.2.1/24", "fd00:10:244:2::1/64"}}
	etcdURL   = "http://198.51.100.1:2379"
	underlays = [2][2]string{{"198.51.100.1", "2001:db8:64::1"}, {"198.51.100.2", "2001:db8:64::2"}}
)

// flannel returns a pod network over two nodes. rules is "iptables" or "nftables".
func flannel(backend, rules string) neighbour {
	var far [2]netip.Addr
	for i := range far {
		far[i] = netip.MustParsePrefix(podCIDRs[1][i]).Addr()
	}
	// start starts flanneld on a node. await returns when the node has the routes to the pods of the other one.
	start := func(m *machine, i int) {
		m.daemon(fmt.Sprintf("flanneld --etcd-endpoints=%s --iface=%s --public-ipv6=%s --ip-masq --healthz-ip=127.0.0.1 --healthz-port=8285",
			etcdURL, underlays[i][0], underlays[i][1]), answersAt("http://127.0.0.1:8285/readyz"))
	}
	await := func(m *machine, i int) {
		for k, verb := range []string{"ip", "ip -6"} {
			prefix := netip.MustParsePrefix(podCIDRs[1-i][k]).Masked()
			m.eventually("the route to "+prefix.String(), func() error {
				_, err := m.try(fmt.Sprintf("%s route show %s | grep .", verb, prefix))
				return err
			})
		}
	}
	plug := func(n *node, verb string) {
		n.sh("CNI_PATH=/opt/programs NETCONFPATH=/etc/cni/net.d /opt/programs/cnitool %s cbr0 /run/netns/%s", verb, n.container().Netns)
	}
	services := func(n *node) []check {
		list := both("load-balancer IP, to an endpoint on another node", n.Client, farLBIPs, 80, "client-2", [2]netip.Addr{})
		list = append(list, both("cluster IP, to an endpoint on another node", n.caller(), farIPs, 80, "client-2", n.caller().Addrs())...)
		list = append(list, both("cluster IP, from the node to an endpoint on another node", n.Node, farIPs, 80, "client-2", [2]netip.Addr{})...)
		list = append(list, both("load-balancer IP with direct server return, to an endpoint on another node", n.Client,
			passedLBIPs, 80, "client-2", n.Client.Addrs())...)
		own := n.Node.Addrs()
		list = append(list, both("node port with direct server return, to an endpoint on another node", n.Client, own[:],
			passedPort,
			"client-2", n.Client.Addrs())...)
		return append(list, both("cluster IP, from a container to an endpoint on another node", n.container(), farIPs, 80, "client-2", [2]netip.Addr{})...)
	}
	return neighbour{
		name: fmt.Sprintf("flannel (%s, %s)", backend, rules), version: "flanneld --version 2>&1 | sed 's/^v//'",
		policy: "pods reach the pods of another node with their own addresses, and machines outside the cluster with the address of the node; a container, which flannel's CNI plugin 0.9.1 connects with the plugin bridge 1.9.1, " +
			"reaches Services with endpoints on both nodes; with [direct server return](dsr.md), an endpoint on the other node gets the address of the client",
		prepare: func(n *node) {
			other := n.second()
			// The lab's node adds no link-local addresses. Without one, cni0 cannot look for a neighbour of forwarded packets.
			n.sh("echo 0 >/proc/sys/net/ipv6/conf/default/addr_gen_mode")
			n.serve(n.Clients[2], n.Client)
			n.offer(far)
			n.unplug(n.container())
			config, err := json.Marshal(map[string]any{
				"Network": "10.244.0.0/16", "SubnetMin": "10.244.0.0", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/48", "IPv6SubnetMin": "fd00:10:244::",
				"EnableNFTables": rules == "nftables", "Backend": map[string]string{"Type": backend},
			})
			lab.Must(n.t, err)
			n.sh(`cat >/etc/put.py <<'E'
import base64, json, urllib.request
e = lambda s: base64.b64encode(s.encode()).decode()
urllib.request.urlopen('%s/v3/kv/put', json.dumps({'key': e('/coreos.com/network/config'), 'value': e('%s')}).encode())
E`, etcdURL, config)
			n.daemon("etcd --data-dir=/run/etcd --unsafe-no-fsync --listen-peer-urls=http://127.0.0.1:2380 --listen-client-urls="+etcdURL+" --advertise-client-urls="+etcdURL,
				"python3 /etc/put.py")
			for i, m := range []*machine{&n.machine, other} {
				m.sh("mkdir -p /run/flannel; printf 'FLANNEL_SUBNET=%s\\nFLANNEL_IPV6_SUBNET=%s\\n' >/run/flannel/subnet.env", podCIDRs[i][0], podCIDRs[i][1])
			}
			other.sh("ip link add cni0 type bridge; ip link set cni0 up; ip addr add %s dev cni0; ip -6 addr add %s dev cni0 nodad", podCIDRs[1][0], podCIDRs[1][1])
			n.sh("mkdir -p /etc/cni/net.d; cat >/etc/cni/net.d/10-flannel.conflist <<'E'\n%s\nE", `{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [
{"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`)
			n.pass(other, far)
			n.other = other
		},
		install: func(n *node, _ bool) {
			if n.other.stops["flanneld"] == nil {
				start(n.other, 1)
			}
			start(&n.machine, 0)
			await(&n.machine, 0)
			await(n.other, 1)
			plug(n, "add")
		},
		reload: func(n *node) { n.end("flanneld"); start(&n.machine, 0); await(&n.machine, 0) },
		remove: func(n *node) {
			plug(n, "del")
			n.end("flanneld")
			n.sh("ip link del cni0; ip link del flannel.1; ip link del flannel-v6.1; ip route del 10.244.2.0/24; ip -6 route del fd00:10:244:2::/64; true")
		},
		allowed: func(n *node) []check {
			outside, pods := n.Client.Addrs(), n.Pods[0].Addrs()
			list := both("pod to outside, with the address of the node", n.caller(), outside[:], backendPort, "client", n.Node.Addrs())
			list = append(list, both("pod to a pod of another node", n.caller(), far[:], backendPort, "client-2", n.caller().Addrs())...)
			list = append(list, both("another node to a pod", n.Clients[2], pods[:], backendPort, "pod-0", [2]netip.Addr{})...)
			return append(list, both("container to a pod of another node", n.container(), far[:], backendPort, "client-2", [2]netip.Addr{})...)
		},
		services: func(n *node) []check { return append(services(n), fromContainer(n)...) },
		through:  func(n *node) []check { return overTCP(services(n)) },
		leaves:   true, lossless: []string{stepRestart, stepRemove},
	}
}
