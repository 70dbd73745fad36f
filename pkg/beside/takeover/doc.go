// Package takeover finds the objects that kube-proxy left on a node, in any of its modes, and removes them after this
// program's first sync:
//
//   - mode nftables: tables;
//   - mode iptables: chains, in both backends of iptables;
//   - mode ipvs: virtual servers, addresses, chains and sets.
//
// Connections continue. Conntrack keeps the translation of connections that began under iptables rules. ipvs keeps its
// connections until they end.
//
// In: the ruleset, tables, devices and sets of the current thread's network namespace; answers of a kube-proxy on its
// ports; the first successful sync.
// Out: removed objects of kube-proxy; the number of remaining ones; a report of a running kube-proxy.
// Never: runs another program, loads a kernel module, creates a table, or changes a rule or chain of the kubelet, a
// network plugin or an administrator. Only [Cleanup] changes anything while a kube-proxy runs.
package takeover
