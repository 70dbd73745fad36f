// Package schedule decides when the proxy may sync next: at once after a quiet time, otherwise after a minimum interval, soon
// after a failure, and periodically without a request.
//
// In: requests, the end and result of every run, and the time, from the caller.
// Out: the time of the next run.
// Never: reads a clock, starts a timer or a goroutine, takes a lock.
package schedule
