// Package command has the command line: the root command, which is the daemon, and the commands that an operator gives. Status, services,
// verify, watch and bundle ask the daemon over its socket. Trace, render and diff ask the kernel or read manifests, and need no daemon.
//
// In: arguments, and a function that runs the daemon.
// Out: text, JSON or YAML, and an exit code.
// Never: a change of the tables. A trace of a real packet makes a table of its own, which the kernel deletes with the process.
package command
