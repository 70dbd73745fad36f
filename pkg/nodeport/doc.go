// Package nodeport finds node ports that collide with other uses of the port on this node. Packets to a node port are translated
// before a socket receives them. So a process that listens on an allocated node port silently gets no packets to the node's
// addresses. collision.go defines collisions, socket.go and ephemeral.go query the kernel, watcher.go has the goroutine.
//
// In: the node ports of Services and the addresses that serve them; the kernel's listening sockets (sock_diag) and
// its ephemeral port range.
// Out: problems, each reported once, and their number.
// Never: changes a socket or a sysctl, reads another process's files, blocks the goroutine that syncs, queries SCTP sockets (this
// would load modules).
package nodeport
