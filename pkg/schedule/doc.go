// Package schedule decides when the proxy may next write its rules: at once after a quiet time, otherwise not before
// a minimum interval has passed, soon again after a failure, and now and then even if nobody asked.
//
// In: requests, the end of every run and how it went, and the time, which the caller brings.
// Out: when the next run is due.
// Never: a clock of its own, a timer, a goroutine or a lock.
package schedule
