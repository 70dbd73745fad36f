// Package view holds the results of commands: values with JSON names, and their rendering as text.
//
// In: values from the daemon.
// Out: tables and lines, with or without colours.
// Never: opens a socket or a file, reads a clock, or decides about Services.
package view
