// Package takeover finds the objects that kube-proxy left on a node, in any of its modes, and removes them after the first sync:
// the tables of mode nftables, the chains of mode iptables in both backends of iptables, and of mode ipvs the virtual servers,
// addresses, chains and sets. Connections continue: those of iptables are translated by conntrack, and those of ipvs stay with
// ipvs until the last connection to a virtual server ends.
//
// In: the ruleset, tables, devices and sets of the current thread's network namespace; whether a kube-proxy
// answers on its ports; the first successful sync.
// Out: the same without kube-proxy's part; the number of remaining objects; a report of a running kube-proxy.
// Never: runs a program, loads a kernel module, creates a table, changes a rule or chain of the kubelet, a network plugin or an
// administrator, or changes anything while a kube-proxy runs (except [Cleanup]).
package takeover
