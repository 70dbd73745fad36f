// Package counters adds up what the kernel's elements have counted: new connections of every frontend and Service port, and those
// refused or dropped, by reason.
//
// An element that is replaced, because a Service has another number of endpoints or another policy, takes its count with it.
// The kernel reports the count in the batch that does so, so that nothing is lost, nothing is read before, and every number
// belongs to what was true when it was counted. What present elements have counted is read when somebody asks, beside the loop,
// and no more often than costs a fiftieth of one processor.
//
// In: counts of elements that are about to go; the kernel's lists of elements.
// Out: numbers that only grow as long as the process lives and their Service exists.
// Never: a change of the kernel's tables; a wait of the loop for a list.
package counters
