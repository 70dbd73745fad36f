// Package soak runs the program with as many changes as a large cluster has in a day, in a few minutes. It has an API server for this purpose.
//
// In: a listener for the API server; changes of objects, and faults, from the test.
// Out: answers to watches. The API server keeps its objects in memory, accepts Events, and rejects all other requests.
// Never: interprets an object, or uses the original API server and etcd, whose work would be the bottleneck.
package soak
