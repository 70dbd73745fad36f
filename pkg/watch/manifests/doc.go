// Package manifests is the source that reads API objects from a folder instead of an API server.
//
// In: a folder of YAML and JSON files, or the content of a file.
// Out: objects in a [watch.Store], which marks their names; problems of the files.
// Never: allocates an address or a port, or makes an EndpointSlice.
package manifests
