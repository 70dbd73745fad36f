// Package model turns Kubernetes objects into the values that the proxy programs.
//
// In: one Service and its EndpointSlices ([Objects]), and this Node.
// Out: an immutable [Service]: its ports, their frontends, and the endpoints selected for this node.
// Never: reads a clock, logs, opens a socket, or changes an input object.
//
// slice.go turns an EndpointSlice into the [Slice] that the program stores. For [Build], build.go reads the Service,
// and collect.go collects and selects endpoints. It gives each endpoint the reasons why policies do not use it, which
// [Explain] turns into text.
package model
