// Package conntrack deletes stale connection tracking entries of Services. The kernel evaluates the rules once for each flow. A
// UDP client that keeps sending from one port stays with a removed endpoint, or with none, for as long as it sends. A client
// without replies keeps sending although its source is no longer allowed. stale.go has the rules, table.go the kernel's table,
// reconciler.go the goroutine.
//
// In: [Desired] values: changed frontends and their endpoints.
// Out: deleted entries of the kernel's table, their number and the time it took; with [Lookup], one entry.
// Never: deletes an established TCP connection or an SCTP association with a reply, blocks the goroutine that syncs, copies
// the kernel's table.
package conntrack
