// Package compare compares the kernel's tables with a plan, and lists them, for commands. It reads all elements, which
// takes the kernel long, and uses its own connection. The loop's comparisons are in pkg/apply, whose tests test this
// package, too.
//
// In: a [plan.Planner], or wanted tables with their elements; the kernel's tables.
// Out: differences, text in nft's language.
// Never: changes the tables.
package compare
