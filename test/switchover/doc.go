// Package switchover replaces the proxy of a node under traffic, and counts failed connections and lost messages: from kube-proxy to
// kube-nftproxy and back, restarts of kube-nftproxy, and upgrades from tables of another form.
//
// The traffic has two parts, and uses the cluster IP, node port and load-balancer IP of a Service, in IPv4 and IPv6:
//
//   - load: new TCP connections and UDP requests from new sockets, at a steady rate;
//   - flows: TCP connections and UDP sockets that were opened before the switch, from an external client, the node and a pod. Each
//     exchanges a message twenty times a second.
//
// After each switch, a test checks that the rules of the previous program are removed, that the rules of other programs are unchanged,
// and that a change of a Service takes effect.
//
// kube-proxy runs in mode nftables, and in mode iptables with both backends. The tests of pkg/beside/takeover have mode ipvs: they run in virtual
// machines, because the kernel needs ipvs.
//
// In: one API server, and for each mode of kube-proxy a lab. On the node of the lab, the two programs run by turns.
// Out: a table with a row for each switch; OUTPUT=folder of the repository writes it to docs/reliability.md.
// Never: writes rules of kube-nftproxy or kube-proxy itself, except a shorter lease.
package switchover
