// Package nft has nftables objects as plain values, and sends them to the kernel in batches of netlink messages. The
// kernel commits a batch as a whole or not at all.
//
// The package complements github.com/google/nftables, whose expressions it uses for rules. A proxy needs three features
// that the library lacks: an encoder for elements that does not allocate for each element, a batch of any size in one
// sendmsg with a check of every reply, and set descriptions with "typeof" data, with which nft prints keys readably.
//
// In: tables, sets, chains, rules, elements.
// Out: a [Batch] for [Conn.Commit]; the objects in the kernel, from the read methods of [Conn].
// Never: chooses the content of a table.
package nft
