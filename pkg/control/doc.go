// Package control lets commands on the same machine ask the running program, over a socket in the file system. Only root, and the
// user that the program runs as, can connect; all that can be asked for is read-only.
//
// In: an HTTP handler; the socket's path.
// Out: its answers, as JSON or lines of JSON.
// Never: a change of anything but the socket, or an end of the program: without a socket, the commands say so and that is all.
package control
