// Package model turns Kubernetes objects into the values that the proxy programs.
//
// In: one Service, its EndpointSlices, and this Node.
// Out: an immutable [Service]: its ports, their frontends, and the endpoints selected for this node.
// Never: reads a clock, logs, opens a socket, or changes an input object.
//
// [Build] reads all slices. The loop uses [Rebuild], which has the same result and reads only changed slices. A builder does the work of both: build.go
// reads the Service, and select.go reads the slices and selects endpoints.
package model
