// Package command has the command line: the root command, which is the daemon, and the commands for operators. Status, services,
// verify, watch and bundle query the daemon over its socket. Trace, render and diff query the kernel or read manifests, and need
// no daemon.
//
// In: arguments, and a function that runs the daemon.
// Out: text, JSON or YAML, and an exit code.
// Never: changes the tables. A trace of a real packet adds its own table, which the kernel deletes with the process.
package command
