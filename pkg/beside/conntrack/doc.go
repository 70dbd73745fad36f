// Package conntrack deletes stale connection tracking entries of Services. The kernel evaluates the rules once for each
// flow, and then keeps the result. So if a UDP client keeps sending from one port, its packets still go to a removed
// endpoint, or to no endpoint. The same applies to a TCP or SCTP client that repeats its first segment. A flow without
// replies still reaches its endpoint, even if its source is no longer allowed. flows.go and departures.go are the
// listeners that request passes. stale.go defines stale flows, table.go accesses the kernel's table, and reconciler.go
// has the goroutine. spreads.go and spread.go terminate silent TCP connections after a scale-up, with a goroutine of
// their own.
//
// In: Services and syncs of the loop, the frontends of its plan and their endpoints.
// Out: deleted entries of the kernel's table, their number, and the duration; single entries from [Lookup].
// Never: deletes a TCP or SCTP flow that has a reply, except a TCP connection to an endpoint in [Departed], or a silent
// one of a Service with [Spreads]; blocks the goroutine that syncs; copies the kernel's table.
package conntrack
