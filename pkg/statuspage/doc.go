// Package statuspage serves a page for a browser: how the program is, its last syncs, the Services of this node and why endpoints
// aren't used. Everything is embedded: the page loads nothing from elsewhere.
//
// In: views, from functions.
// Out: HTTP handlers for the metrics port.
// Never: changes anything, or asks more often than so that all askers together cost little.
package statuspage
