// Package model turns Kubernetes objects into the values that the proxy programs.
//
// In: one Service, its EndpointSlices, and this Node.
// Out: an immutable [Service]: its ports, their frontends, and the endpoints selected for this node.
// Never: reads a clock, logs, opens a socket, or changes an input object.
package model
