// Package watch keeps the only copy of the API objects that the proxy reads, and marks changed objects.
//
// In: the API server ([Informers]); the package manifests has the source for a folder.
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] returns by name.
// Never: interprets an object; package model does.
package watch
