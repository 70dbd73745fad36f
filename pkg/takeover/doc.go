// Package takeover finds the objects that kube-proxy left on a node, in any of its modes, and removes them after the first sync:
//
//   - mode nftables: tables;
//   - mode iptables: chains, in both backends of iptables;
//   - mode ipvs: virtual servers, addresses, chains and sets.
//
// Connections continue. Conntrack translates the packets of connections that began under iptables rules. ipvs serves a connection
// that it began until the connection ends.
//
// In: the ruleset, tables, devices and sets of the current thread's network namespace; answers of a kube-proxy on its ports; the
// first successful sync.
// Out: the same objects without kube-proxy's; the number of remaining objects; a report of a running kube-proxy.
// Never: runs a program, loads a kernel module, creates a table, changes a rule or chain of the kubelet, a network plugin or an
// administrator, or changes anything while a kube-proxy runs (except [Cleanup]).
package takeover
