// Package control lets commands on the same machine query the running program, over a socket in the file system. Only
// root and the program's user can connect, and all queries are read-only.
//
// In: an HTTP handler; the socket's path.
// Out: its answers, as JSON or lines of JSON.
// Never: changes anything except the socket, or stops the program: without a socket, only the commands fail.
package control
