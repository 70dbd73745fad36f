// Package conntrack deletes connection tracking entries that keep traffic of Services from where it belongs now. The kernel
// asks the rules once per flow: a UDP client that keeps sending from one port stays with an endpoint that is gone, or with
// none at all, for as long as it sends, and one that is never answered sends on though its source isn't allowed any more.
// stale.go has the rules, table.go the kernel, reconciler.go the goroutine.
//
// In: [Desired] values, the frontends that have changed and their endpoints.
// Out: deleted entries of the kernel's table, their number and the time it took; with [Lookup], one entry.
// Never: an established TCP connection, an SCTP association that was answered, the goroutine that syncs, a copy of the
// kernel's table.
package conntrack
