// Package soak runs the program under a day's changes of a large cluster in a few minutes.
//
// In: an address for an API server that holds its objects in memory and answers only watches.
// Out: changes, ended and expired watches, and outages, as a watching client sees them.
// Never: interprets an object, or uses the original API server and etcd, which would use up the processors first.
package soak
