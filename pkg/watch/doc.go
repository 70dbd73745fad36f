// Package watch keeps the only copy of the API objects that the proxy reads, and marks changed objects.
//
// In: the API server ([Informers]), or a folder of manifests ([Manifests]).
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] returns by name.
// Never: interprets an object; package model does.
package watch
