// Package plan decides what the kernel should hold: constant chains and rules, and the elements that stand for Services.
//
// In: immutable [model.Service] values, the addresses of this node, the ServiceCIDRs, and [Options].
// Out: the tables, and either every element or the difference since the last [Planner.Take].
// Never: a clock, a log, a socket; a chain, rule or set that belongs to a single Service.
//
// Everything in the tables is a function of the present state, not of the way that led there: the same Services give the
// same elements whether they came one by one or all at once. README.md tells how packets go through it.
package plan
