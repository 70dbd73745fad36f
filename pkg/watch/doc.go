// Package watch keeps the only copy of the API objects that the proxy reads, and says which of them changed.
//
// In: the API server ([Informers]), or a folder of manifests ([Manifests]).
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] hands out by name.
// Never: a decision about what an object means; that is for package model.
package watch
