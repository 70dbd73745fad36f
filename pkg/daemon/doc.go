// Package daemon starts the parts of the program, hands each what it needs, and runs them until the process is to stop. It decides what a
// process does with its options: serve, prepare the host, clean up, or write the configuration.
//
// In: options of pkg/config.
// Out: running parts; their servers: health, metrics, the control socket.
// Never: an element or a rule of its own, or the answer to a question.
package daemon
