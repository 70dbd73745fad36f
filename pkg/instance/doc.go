// Package instance lets one of several kube-nftproxy processes in a network namespace serve, whatever their names and flags are: the
// newest that is ready to. The others wait, and the newest of them takes over when it exits.
//
// In: that this process is ready to serve, and that it has stopped.
// Out: whether it may serve, and which process serves instead.
// Never: a table, a file.
//
// # How they agree
//
// The process that serves, or none does yet, listens at an abstract unix socket: the kernel keeps its name in the network namespace, also
// for containers that share nothing else, and takes it back when the process exits in any way. Every other process is connected to it and
// learns by the end of the connection that the name is free. Each message is a line of JSON.
//
//	guest → holder   {"id", "pid", "name", "started", "ready"}   first, and again once it is ready
//	holder → guest   the same of the holder                      first
//	holder → guest   {"yours": true}                             the holder has stopped, and the name is free
//
// A holder yields to a guest that is ready, if that one started later or the holder is not ready. A process that it can't agree with,
// because that one belongs to another user, does not answer, or may not be connected to, is passed over: this one then serves too.
package instance
