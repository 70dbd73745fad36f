// Package counters sums up the counters of the kernel's elements: new connections of every frontend and service port, and
// rejected or dropped connections, by reason.
//
// When the number of endpoints or a policy of a Service changes, the program replaces an element. The kernel deletes its counter,
// and reports the final value in the same batch. So no count is lost, and the program need not read counters before a batch. Each
// count is attributed to the Service and the outcome that the element stood for. Another goroutine reads the counters of present
// elements on demand. It takes at most a fiftieth of one processor.
//
// In: counts of deleted elements; the kernel's lists of elements.
// Out: numbers that never decrease during the life of the process and of their Service.
// Never: changes the kernel's tables, blocks the loop during a list.
package counters
