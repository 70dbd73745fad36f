// Package takeover finds what kube-proxy left on a node, in any of its modes, and removes it once our tables serve: the tables
// of mode nftables, the chains of mode iptables in both of iptables' backends, and of mode ipvs the virtual servers, addresses,
// chains and sets. Connections go on: what iptables has translated is in conntrack, and what ipvs has scheduled stays with
// ipvs until the last connection to a virtual server has ended.
//
// In: the ruleset, tables, devices and sets of the network namespace of the calling goroutine's thread; whether a kube-proxy
// answers on its ports; that a sync has succeeded.
// Out: all of that without kube-proxy's part; how much of it is left; a report of a kube-proxy that runs.
// Never: a program run, a kernel module loaded, a table made, a rule or chain that kubelet, a network plugin or an
// administrator made, or a change while a kube-proxy runs (but for [Cleanup], which is told to).
package takeover
