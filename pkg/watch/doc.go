// Package watch keeps the only copy of the API objects that the proxy reads, and marks changed objects.
//
// In: objects from the API server ([Informers]), or from a folder of files (package manifests).
// Out: names, marked in a [track.Tracker]; and the objects themselves, which [Store] returns by name.
// Never: decides about Services; package model does.
//
// A reflector of client-go decodes each change and passes it to [objects]. [transformer] then turns the object into
// its stored form, see [object]: a value with only the fields that the program reads. readList does this for each
// item of a list, so that a list is never in memory as a whole.
package watch
