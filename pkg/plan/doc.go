// Package plan computes the tables that the kernel should hold: constant chains and rules, and the elements for
// Services.
//
// In: immutable [model.Service] values, the addresses of this node, the ServiceCIDRs, and [Options].
// Out: the tables and elements, on demand; each difference as it happens, to a [Sink].
// Never: reads the kernel's tables, knows their sizes and digests; uses a clock, a log or a socket; makes a chain, rule
// or set for a single Service.
//
// The tables depend on the present Services, and not on the order of their changes. The exceptions are the assigned
// numbers and ids, and the choice of Services that have to wait when a limit of the node is reached. README.md lists
// the files.
package plan
