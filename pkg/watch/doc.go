// Package watch keeps the only copy of the API objects that the proxy reads, and marks changed objects.
//
// In: objects from the API server ([Informers]), or from a folder of files (package manifests).
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] returns by name.
// Never: interprets an object; package model does.
//
// The stored form of an object is stripped and encoded, see [object]. [decoder] makes it from a watched protobuf object, readList from the items of a
// list, and [transformer] from all other objects. A reflector of client-go passes each change to [objects].
package watch
