// Package nodeport finds node ports that collide with something else on this node. Packets to a node port are translated before
// any socket sees them, so a process that listens on an allocated node port gets nothing that is sent to the node's addresses,
// and nobody tells it. collision.go says what collides, socket.go and ephemeral.go ask the kernel, watcher.go has the goroutine.
//
// In: the node ports of Services and the addresses on which they are served; the kernel's listening sockets (sock_diag) and
// the range of ports that it gives to processes.
// Out: problems to report, each once, and how many there are.
// Never: a change to a socket or a sysctl, another process's files, the goroutine that syncs. Nor SCTP's sockets: to ask for
// them would load its modules.
package nodeport
