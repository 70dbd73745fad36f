// Package track collects the names of changed objects until the proxy takes them.
//
// In: marks from any goroutine: a Service, one of its EndpointSlices, the Node, or the ServiceCIDRs changed.
// Out: a [Dirty] with the names that changed since the last one, and a channel that signals new marks.
// Never: copies an API object, logs, or reads a clock other than the given one.
package track
