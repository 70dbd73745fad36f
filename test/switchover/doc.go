// Package switchover takes a node from kube-proxy to kube-nftproxy and back while traffic flows, and counts what the traffic
// notices: a thousand new TCP connections a second and two hundred UDP requests from new sockets, in turn to a Service's
// cluster IP, node port and load-balancer IP, in IPv4 and IPv6; and flows that were there before the switch, from outside,
// from the node and from a pod, each of which sends and awaits an answer twenty times a second. After each switch it looks
// whether what the other program left is gone, whether everybody else's rules are as they were, and how long a change of a
// Service takes.
//
// kube-proxy runs in mode nftables, and in mode iptables with both backends, which it finds as the program iptables. Mode ipvs
// is not here: it takes a kernel that has it, so the tests of pkg/takeover look after it in virtual machines.
//
// In: one API server, and for each mode a lab of its own whose node the two programs take in turns.
// Out: a table with a row for each switch; OUTPUT=folder of the repository writes it to docs/migrating.md.
// Never: a rule of ours or kube-proxy's written by hand.
package switchover
