// Package soak runs the program under a day's changes of a large cluster in a few minutes.
//
// In: an address to listen at, for an API server that holds its objects in memory and answers nothing but watches.
// Out: what a watching client sees of changes, ended and expired watches, and times in which nobody answers.
// Never: an object's meaning; a real API server and its etcd would use up the processors first.
package soak
