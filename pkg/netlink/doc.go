// Package netlink sends requests to the kernel's netfilter: nftables and connection tracking. It sends many messages in
// one system call, and has one receive loop for short answers and for long lists.
//
// In: requests and batches of messages.
// Out: the messages that answer them, and their attributes.
// Never: interprets a message, copies a list.
package netlink
