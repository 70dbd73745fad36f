// Package doctor finds settings of a node that break Services although the tables are right.
//
// In: the sysctls, the ruleset and the tables of iptables-legacy of this network namespace; kube-proxy's leftovers; other users of node
// ports.
// Out: findings, each with its impact and a command that fixes it.
// Never: changes anything.
package doctor
