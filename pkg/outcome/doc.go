// Package outcome has a row for each outcome of a new connection to a service port: its names, its words, and its
// properties. The parts of the program that count, explain or show outcomes read these rows, and so do the tests of
// the pages and of the alert rules. A new outcome is one row here, and the behaviour in pkg/plan.
//
// In: nothing.
// Out: the rows.
// Never: decides about a connection, depends on another package.
package outcome
