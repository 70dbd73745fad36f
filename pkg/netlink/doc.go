// Package netlink speaks to the kernel's netfilter: nftables and connection tracking. It sends many messages in one system call, and has
// one loop that receives, for short answers and for long lists.
//
// In: requests and batches of messages.
// Out: the messages that answer them, and their attributes.
// Never: the meaning of a message, a copy of a list.
package netlink
