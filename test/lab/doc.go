// Package lab creates a small cluster network from network namespaces, to test the node's nftables rules with real packets: a
// node, pods on it, pods elsewhere and a machine outside the cluster, in IPv4 and IPv6. Servers report the client that reached
// them, and probes report the result.
//
// All hosts are connected to the node, each by its own veth pair:
//
//	client   192.0.2.100  2001:db8::100       -- eth0           node
//	client-1 192.0.2.101  2001:db8::101       -- eth1           192.0.2.1  2001:db8::1
//	pod-0    10.244.0.10  fd00:10:244::10     -- veth-pod0      (on its eth0)
//	pod-1    10.244.0.11  fd00:10:244::11     -- veth-pod1
//	remote-0 10.244.1.10  fd00:10:244:1::10   -- veth-remote0
//
// Every link is point to point: a host has its address as a single address (/32, /128) and a default route to a link-local
// gateway, the node has one route for each host, and all neighbour entries are permanent, so that no resolution delays packets.
// The node's default route leads to the client, which forwards nothing: a packet to an unused address is lost there. Therefore
// every address that a test invents for a Service reaches the node's rules.
//
// With Config.Bridge, the pods' devices are ports of a bridge, and the pods' gateway has the bridge's hardware address. They
// still have single addresses, so a pod sends even to its neighbour on the bridge through the node.
//
// Two simplifications are intended. Remote pods, which stand for pods on other nodes, are connected to the node directly, so
// their replies to traffic that was not masqueraded return through it. And the kernel's rate limits for ICMP errors are off, so
// that every rejection is visible. SCTP uses raw sockets, INIT and INIT ACK only, because many kernels lack it: conntrack and NAT
// see valid packets all the same.
//
// In: a Config, and the privilege to create namespaces (root, or a user namespace).
// Out: a Lab of Hosts; namespaces named knp-<pid>-<number>-<host> that "ip netns exec" can enter.
// Never: uses testing.T (except ForTest) or external programs, changes the namespace in which the program was started.
package lab
