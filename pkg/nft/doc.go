// Package nft is a small vocabulary of nftables objects as plain values, and the one way in which they reach the kernel:
// a batch of netlink messages that commits as a whole or not at all.
//
// It stands beside github.com/google/nftables, whose expressions it uses for rules, because a proxy needs three things
// that library doesn't offer: an encoder for elements that allocates nothing per element, a batch of any size in a single
// sendmsg whose every reply is read, and set descriptions with the "typeof" data by which nft prints keys readably.
//
// In: tables, sets, chains, rules, elements.
// Out: a [Batch] for [Conn.Commit]; what the kernel holds, read back by the List methods of [Conn].
// Never: a decision about what should be programmed.
package nft
