// Package trace follows a packet through any rules in a table of the kernel: it evaluates each expression. Where a rule draws a
// random number, it follows all ways, each with its probability. It reads only the elements that the packet's rules look up.
//
// In: a packet, a table's chains and rules, and functions that return single elements and this machine's routes.
// Out: the packet's destinations with their probabilities, the source that the receiver sees, and the reasons, in words.
// Never: opens a socket, reads a clock, sends a packet.
package trace
