// Package nodeport finds node ports that collide with another use of the port on this node. The rules translate packets
// to a node port before a socket can receive them. So a process that listens on an allocated node port silently gets no
// packets to the node's addresses. collision.go defines collisions, socket.go and ephemeral.go query the kernel,
// watcher.go has the goroutine.
//
// In: the node ports of Services and the addresses that serve them; the kernel's listening sockets (sock_diag) and
// its ephemeral port range.
// Out: problems, each reported once, and their number.
// Never: changes a socket or a sysctl, reads another process's files, blocks the goroutine that syncs, queries SCTP
// sockets (this would load modules).
package nodeport
