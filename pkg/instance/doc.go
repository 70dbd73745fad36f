// Package instance selects the kube-nftproxy process that serves a network namespace, among those with the same
// service-proxy name, regardless of names and other flags of the processes: the newest one that is ready. The others
// stand by, and the newest of them takes over when it exits.
//
// In: this process is ready to serve, or has stopped, or the process that serves does not work.
// Out: whether it may serve, and which process serves instead.
// Never: accesses a table or a file.
//
// # Protocol
//
// The holder is the process that serves, or will serve. It listens on an abstract unix socket. The kernel keeps the
// socket's name in the network namespace, even for containers that share nothing else, and releases it when the process
// exits in any way. Every other process is a guest: it is connected to the holder, and the end of the connection tells
// it that the name is free. Each message is a line of JSON.
//
//	guest → holder   {"id", "pid", "name", "started", "ready", "port", "token"}   first, and after each change
//	holder → guest   the same of the holder                                       first; all that Find wants
//	holder → guest   {"yours": true}                                              it has stopped, and the name is free
//
// A holder yields to a guest that is ready, if the guest started later or the holder is not ready. A process ignores a
// holder that belongs to another user, does not answer, or cannot be reached, and then serves too. A guest that finds
// that the holder does not work serves at once, and claims the name as if it had started now.
//
// # Proofs
//
// A process that can stop another one must be able to do its work. So each side proves that it has CAP_NET_ADMIN over
// the network namespace: it sends the other side's token to the other side's netlink port, which the kernel permits
// only with this capability. A holder ignores the claim of a guest without a proof. A guest serves beside a holder
// without a proof.
package instance
