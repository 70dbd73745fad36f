// Package lab makes a small cluster network out of network namespaces, in which real packets prove what the node's
// nftables rules do: a node, pods on it, pods elsewhere and a machine outside of the cluster, in IPv4 and IPv6, with
// servers that tell who reached them and probes that tell what came back.
//
// Everything hangs on the node, each host by a veth pair of its own:
//
//	client   192.0.2.100  2001:db8::100       -- eth0           node
//	client-1 192.0.2.101  2001:db8::101       -- eth1           192.0.2.1  2001:db8::1
//	pod-0    10.244.0.10  fd00:10:244::10     -- veth-pod0      (on its eth0)
//	pod-1    10.244.0.11  fd00:10:244::11     -- veth-pod1
//	remote-0 10.244.1.10  fd00:10:244:1::10   -- veth-remote0
//
// Every link is point to point: a host has its address as a single address (/32, /128) and a default route to a
// link-local gateway, the node has one route per host, and all neighbours are permanent, so that nothing is resolved
// or waited for. The node's default route leads to the client, which forwards nothing: a packet for an address that
// nobody has disappears there. Therefore every address a test invents for a Service reaches the node's rules.
//
// With Config.Bridge, the pods' devices are ports of a bridge, and the pods' gateway has the bridge's hardware address.
// They still have single addresses, so a pod sends even to its neighbour on the bridge by way of the node.
//
// Two simplifications are on purpose. Remote pods, which stand for pods on other nodes, hang on the node directly, so
// their answers to traffic that was not masqueraded return through it. And the kernel's rate limits for ICMP errors
// are off, so that every refusal is seen. SCTP is spoken through raw sockets, INIT and INIT ACK only, because many
// kernels come without it: conntrack and NAT see valid packets all the same.
//
// In: a Config, and the privilege to make namespaces (root, or a user namespace).
// Out: a Lab of Hosts; namespaces named knp-<pid>-<number>-<host> that "ip netns exec" can enter.
// Never: testing.T (but for ForTest), external programs, anything in the namespace the program was started in.
package lab
