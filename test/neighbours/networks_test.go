//go:build neighbours

package neighbours

import (
	"fmt"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// networks are container engines, network plugins, and other users of routing.
func networks() []neighbour {
	return []neighbour{
		neighbour{
			name: "Docker", version: "dockerd --version | sed 's/^Docker version //; s/,.*//'",
			set:    "`iptables -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT`, if Docker has enabled forwarding and so sets the policy DROP",
			broken: []string{"cluster IP, from a pod", "load-balancer IP", "load-balancer IP with policy Local", "node port", "node port with policy Local"},
			policy: "clients do not reach pods. Containers were not run", leaves: true,
			install: func(n *node, configured bool) {
				if configured {
					n.sh("iptables -N DOCKER-USER; iptables -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT")
				}
				n.sh("echo 0 >/proc/sys/net/ipv4/ip_forward")
				startDocker(n)
			},
			reload: func(n *node) { stopDocker(n); startDocker(n) },
			remove: func(n *node) {
				stopDocker(n)
				n.sh("iptables -P FORWARD ACCEPT; for t in filter nat; do iptables -t $t -F; iptables -t $t -X; done; ip link del docker0")
			},
			denied: func(n *node) []check {
				return direct(n.Client, n.Pods[0], backendPort, "-", "client to pod, denied")[:1]
			},
			lossless: []string{stepRestart, stepRemove},
		},
		podman("nftables"), podman("iptables"),
		cni("nftables"), cni("iptables"),
		neighbour{
			name: "keepalived", version: "keepalived -v 2>&1 | sed -n 's/^Keepalived v//; s/ .*//; 1p'",
			policy: "the load-balancer IP is its virtual IP, an address of the node",
			install: func(n *node, _ bool) {
				n.sh("mkdir -p /etc/keepalived; cat >/etc/keepalived/keepalived.conf <<'E'\n%sE", lines("global_defs {", " router_id node", "}", "vrrp_instance vip {", " state MASTER",
					" interface eth0", " virtual_router_id 51", " priority 200", " advert_int 1", " virtual_ipaddress {", "  203.0.113.10/32", " }", "}"))
				n.daemon("keepalived -n -l -f /etc/keepalived/keepalived.conf", "ip addr show dev eth0 | grep -q 203.0.113.10/32")
			},
			reload: func(n *node) { n.sh("kill -HUP $(cat /run/pid-keepalived)") },
			remove: func(n *node) {
				n.sh("kill -TERM $(cat /run/pid-keepalived); while ip addr show dev eth0 | grep -q 203.0.113.10/32; do sleep 0.05; done")
			},
			allowed: func(n *node) []check {
				return []check{{name: "client to the virtual IP", from: n.Client, proto: inet.TCP, to: netip.AddrPortFrom(lbIPs[0], ownPort), server: "node"}}
			},
			lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
		},
		wireguard(),
		nodeLocalDNS(),
		networkPolicies(),
		flannel("vxlan", "iptables"), flannel("vxlan", "nftables"), flannel("host-gw", "iptables"), flannel("host-gw", "nftables"),
		metalLB(),
		libvirt(), sshguard(),
		kubeRouter(), crowdSec(),
		besidePortmap("nftables"), besidePortmap("iptables"), insteadOfPortmap(),
	}
}

func startDocker(n *node) {
	n.daemon("dockerd --storage-driver=vfs", `python3 -c "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect('/run/docker.sock'); `+
		`s.send(b'GET /_ping HTTP/1.0\r\n\r\n'); assert b' 200 ' in s.recv(99)"`)
}

func stopDocker(n *node) {
	n.end("dockerd")
	n.sh("rm -f /run/docker.sock /run/docker.pid")
}

// published is the host port that leads to the container.
const published = 8088

// containers returns the checks of a container with a published port, whose address is in IPv4.
func containers(addr netip.Addr) func(n *node) []check {
	return func(n *node) []check {
		return []check{{name: "published port", from: n.Client, proto: inet.TCP, to: netip.AddrPortFrom(n.Node.IPv4, published), server: "pod-3"},
			{name: "node to container", from: n.Node, proto: inet.TCP, to: netip.AddrPortFrom(addr, backendPort), server: "pod-3"}}
	}
}

// fromContainer are the checks of a container that is a client of Services.
func fromContainer(n *node) []check {
	return []check{
		{name: "cluster IP, from a container", from: n.container(), proto: inet.TCP, to: netip.AddrPortFrom(clusterIPs[0], 80), server: "*"},
		{name: "cluster IP, from a container", from: n.container(), proto: inet.UDP, to: netip.AddrPortFrom(clusterIPs[0], 80), server: "*"},
	}
}

// unplug removes the device of a pod, which the neighbour replaces.
func (n *node) unplug(pod *lab.Host) {
	if out, err := pod.Command(n.t.Context(), "ip", "link", "del", "eth0").CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
}

func podman(firewall string) neighbour {
	run := func(n *node, verb string) {
		n.sh("NETAVARK_FW=%s /usr/lib/podman/netavark --config /run/netavark %s /run/netns/%s <<'E'\n%s\nE", firewall, verb, n.container().Netns, `{"container_id": "c1", "container_name": "c1",
"networks": {"podman": {"static_ips": ["10.88.0.2"], "interface_name": "eth0"}},
"network_info": {"podman": {"name": "podman", "id": "53ce4390f2adb1681eb1a90ec8b48c49c015e0a8d336c197637e7f65e365fa9e", "driver": "bridge", "network_interface": "podman0",
"subnets": [{"gateway": "10.88.0.1", "subnet": "10.88.0.0/16"}], "ipv6_enabled": false, "internal": false, "dns_enabled": false, "ipam_options": {"driver": "host-local"}}},
"port_mappings": [{"container_port": 8080, "host_ip": "", "host_port": 8088, "protocol": "tcp", "range": 1}]}`)
	}
	return neighbour{
		name: "Podman (netavark, " + firewall + ")", version: "/usr/lib/podman/netavark --version | sed 's/^netavark //'", prepare: func(n *node) { n.unplug(n.container()) },
		policy:  "a published port leads to its container, and the container reaches Services",
		install: func(n *node, _ bool) { run(n, "setup") },
		reload:  func(n *node) { run(n, "teardown"); run(n, "setup") },
		remove:  func(n *node) { run(n, "teardown") },
		allowed: containers(netip.MustParseAddr("10.88.0.2")), services: fromContainer, leaves: true,
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}

func cni(backend string) neighbour {
	run := func(n *node, verb string) {
		n.sh(`CAP_ARGS='{"portMappings": [{"hostPort": 8088, "containerPort": 8080, "protocol": "tcp"}], "bandwidth": {"ingressRate": 100000000, "ingressBurst": 10000000}}' \
CNI_PATH=/opt/programs NETCONFPATH=/etc/cni/net.d /opt/programs/cnitool %s net /run/netns/%s`, verb, n.container().Netns)
	}
	return neighbour{
		name: "CNI plugins bridge, portmap, firewall, bandwidth (" + backend + ")", version: "/opt/programs/portmap 2>&1 | sed -n 's/.*plugin v*//p' | head -1",
		policy: "with a chain FORWARD that drops, the plugin firewall lets its pod pass, and no client reaches another pod; a host port leads to its pod",
		prepare: func(n *node) {
			n.unplug(n.container())
			n.sh("mkdir -p /etc/cni/net.d; cat >/etc/cni/net.d/10-net.conflist <<'E'\n%s\nE", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [
{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": %q, "ipam": {"type": "host-local", "subnet": "10.244.7.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
{"type": "portmap", "backend": %[1]q, "capabilities": {"portMappings": true}},
{"type": "firewall", "backend": "iptables"}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`, backend))
			n.sh("iptables -P FORWARD DROP; iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT; iptables -A FORWARD -s 10.244.0.0/16 -j ACCEPT")
		},
		install: func(n *node, _ bool) { run(n, "add") },
		reload:  func(n *node) { run(n, "del"); run(n, "add") },
		remove:  func(n *node) { run(n, "del") },
		allowed: func(n *node) []check {
			return []check{{name: "published port", from: n.Client, proto: inet.TCP, to: netip.AddrPortFrom(n.Node.IPv4, published), server: "pod-3"}}
		},
		services: fromContainer,
		denied: func(n *node) []check {
			return direct(n.Client, n.Pods[0], backendPort, "-", "client to pod, denied")[:1]
		},
		leaves: true, lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
