// Package read reads rules and describes them, for commands and findings: the rules of a table as decoded expressions,
// base chains and rules of other programs, text in nft's language, and the kernel's trace events. The loop does not
// need it.
//
// In: an [nft.Conn], planned tables and elements.
// Out: tables with their rules, text, events.
// Never: changes a table, except the one of a [Tracer].
package read
