// Package world makes the objects of test clusters: Nodes, Services and EndpointSlices.
//
// In: names and addresses.
// Out: objects as the API server returns them, a folder of manifests.
// Never: defaults that a test would have to undo.
package world
