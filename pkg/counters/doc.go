// Package counters sums up the counters of the kernel's elements: new connections of every frontend and service port, and
// rejected or dropped connections, by reason.
//
// A new number of endpoints or a new policy of a Service replaces an element, and its counter is deleted with it. The kernel
// reports the counter in the same batch. So no count is lost, nothing has to be read before, and every count is attributed by the
// state at the time of counting. The counters of present elements are read on demand, beside the loop, and take at most a
// fiftieth of one processor.
//
// In: counts of deleted elements; the kernel's lists of elements.
// Out: numbers that never decrease during the life of the process and of their Service.
// Never: changes the kernel's tables, blocks the loop during a list.
package counters
