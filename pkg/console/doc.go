// Package console answers an operator's questions about the daemon, from commands over the control socket and from the status
// page. It reads data of the daemon's parts beside the loop, and asks the loop between two syncs.
//
// In: the daemon's readable parts, see [Parts]; questions over HTTP.
// Out: views, an archive for a bug report.
// Never: changes the tables or any part of the daemon.
package console
