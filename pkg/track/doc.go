// Package track gathers the names of what changed until somebody has time for them.
//
// In: marks from any goroutine: a Service, one of its EndpointSlices, the Node, or the ServiceCIDRs changed.
// Out: a [Dirty] with the names that changed since the last one, and a channel that says when there is one.
// Never: a copy of an API object, a log, or a clock of its own.
package track
