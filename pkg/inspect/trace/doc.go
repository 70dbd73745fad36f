// Package trace follows a packet through the rules of a table in the kernel. It evaluates each expression of a rule. If
// a rule draws a random number, trace follows the packet's path for each possible number, with its probability. It
// reads only the elements that these rules look up.
//
// In: a packet, a table's chains and rules, and interfaces that return single elements and this machine's routes.
// Out: the packet's destinations with their probabilities, the source that the receiver sees, and the reasons, in
// words.
// Never: opens a socket, reads a clock, sends a packet.
package trace
