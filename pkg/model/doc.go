// Package model turns Kubernetes objects into what the proxy needs to know of them.
//
// In: one Service, its EndpointSlices, and this Node.
// Out: an immutable [Service]: its ports, the frontends by which each is reached, and the endpoints already selected
// for this node.
// Never: a clock, a log, a socket, or a change to an object that it was given.
package model
