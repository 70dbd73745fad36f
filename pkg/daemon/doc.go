// Package daemon starts and connects the parts of the program, and runs them until the process should exit. It selects
// the work of a process by its options: serve, prepare the host, clean up, or write the configuration.
//
// In: options of pkg/config.
// Out: running parts; their servers: health, metrics, the control socket.
// Never: makes an element or a rule, or answers a question.
package daemon
