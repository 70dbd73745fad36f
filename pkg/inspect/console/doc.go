// Package console answers queries about the daemon, from commands over the control socket and from the status page. It
// reads data of the daemon's parts beside the loop, and queries the loop between two syncs.
//
// In: the daemon's readable parts, see [Parts]; queries over HTTP.
// Out: views, an archive for a bug report.
// Never: changes the tables or any part of the daemon.
package console
