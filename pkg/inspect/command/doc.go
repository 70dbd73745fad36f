// Package command has the command line: the root command, which is the daemon, and the commands for operators. Status,
// services, verify, watch, bundle and version query the daemon over its socket. Trace, diff and preflight read the
// kernel, and render reads only manifests. Of these four, diff queries the daemon for its configuration and objects,
// and trace queries it for names and for node ports on loopback.
//
// In: arguments, and a function that runs the daemon.
// Out: text, JSON or YAML, and an exit code.
// Never: changes the tables. A trace of a real packet adds its own table, which the kernel deletes with the process.
package command
