// Package conntrack deletes stale connection tracking entries of Services. The kernel evaluates the rules once for each flow. So
// the packets of a UDP client that keeps sending from one port still reach a removed endpoint, or no endpoint. A flow without
// replies keeps its translation even if its source is no longer allowed. stale.go defines stale flows, table.go accesses the
// kernel's table, and reconciler.go has the goroutine.
//
// In: [Desired] values: changed frontends and their endpoints.
// Out: deleted entries of the kernel's table, their number and the duration; one entry from [Lookup].
// Never: deletes an established TCP connection or an SCTP association with a reply, blocks the goroutine that syncs, or copies the
// kernel's table.
package conntrack
