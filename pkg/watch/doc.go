// Package watch keeps the only copy of the API objects that the proxy reads, and marks changed objects.
//
// In: objects from the API server ([Informers]), or from a folder of files (package manifests).
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] returns by name.
// Never: interprets an object; package model does.
//
// A reflector of client-go passes a change to [objects]. A watched object in protobuf has its stored form already ([decoder]). All other objects, such as
// the items of a list, get it in [transformer].
package watch
