// Package trace follows a packet through the rules of a table as the kernel has them, whatever they are: it does what each
// expression does. Where a number is drawn, it goes all ways at once, each with its probability. Of the elements of maps it asks
// for those alone that the packet's rules look up.
//
// In: a packet, a table's chains and rules, and what answers for single elements and for this machine's routes.
// Out: where the packet goes, with which probability, what the receiver sees as its source, and why, in words.
// Never: a socket, a clock, or anything sent.
package trace
