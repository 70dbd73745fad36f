// Package plan decides which tables a cluster wants: constant chains and rules, and the elements that stand for Services.
//
// In: immutable [model.Service] values, the addresses of this node, the ServiceCIDRs, and [Options].
// Out: the tables and elements, on demand; each difference as it happens, to a [Sink].
// Never: the kernel's tables, and their sizes and digests; a clock, a log, a socket; a chain, rule or set that belongs to a single Service.
//
// Everything in the tables is a function of the present state, not of the way that led there: the same Services give the
// same elements whether they came one by one or all at once. README.md tells how packets go through it.
package plan
