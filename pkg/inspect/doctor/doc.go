// Package doctor finds settings of a node that break Services although the tables are right.
//
// In: the sysctls, the ruleset and the tables of iptables-legacy of this network namespace; kube-proxy's leftovers;
// other users of node ports; programs that monitor nftables. For [Preflight], also the modules, the ports and the pod
// network of a node without the program.
// Out: findings, each with its impact, the smallest fix, and a list of everything that the fix affects.
// Never: changes anything, or names a fix for more than one node or object.
package doctor
