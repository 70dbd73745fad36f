// Package statuspage serves a page for browsers: the state of the program, its last syncs, the Services of this node
// and the reasons why endpoints are not used. Everything is embedded: the page loads nothing from other servers.
//
// In: views, from functions.
// Out: HTTP handlers for the metrics port.
// Never: changes anything, or queries more often than a limit for all clients together.
package statuspage
