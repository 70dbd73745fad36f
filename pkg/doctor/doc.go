// Package doctor looks for what on a node keeps Services from working though the tables are right.
//
// In: the sysctls, the ruleset and the tables of iptables-legacy of this network namespace; what kube-proxy left; who else uses node
// ports.
// Out: findings, each with what it breaks and the command that mends it.
// Never: a change.
package doctor
