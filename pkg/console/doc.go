// Package console answers an operator's questions about the daemon: the commands that ask over the control socket, and the status page.
// It reads, beside the loop, what the parts of the daemon let others read, and asks the loop between two syncs.
//
// In: the parts of the daemon that it may read, see [Parts]; questions over HTTP.
// Out: views, an archive for a bug report.
// Never: a change of the tables, or of any part of the daemon.
package console
