// Package view holds what the commands show: values with JSON names, and their rendering as text for a person.
//
// In: values that the daemon has filled in.
// Out: tables and lines, with colours where they are wanted.
// Never: a socket, a file, a clock, or a decision about Services.
package view
