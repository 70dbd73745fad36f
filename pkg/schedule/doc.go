// Package schedule decides when the proxy syncs next: immediately after a quiet time, otherwise after a minimum
// interval, soon after a failure, and after a maximum interval without a request.
//
// In: requests, the end and result of each run, and the current time, all from the caller.
// Out: the time of the next run.
// Never: reads a clock, starts a timer or a goroutine, takes a lock.
package schedule
