// Package counters adds up the counters of the kernel's elements: new connections of each frontend and service port,
// and rejected or dropped connections, by reason.
//
// When the number of endpoints or a policy of a Service changes, the program replaces an element. The kernel deletes
// its counter, and reports the final value in the same batch. So the program need not read counters before a batch;
// docs/maps.md#counters has the exceptions. The package attributes each count to the Service and the outcome of the
// element. On demand, another goroutine reads the counters of present elements. It runs for at most a fiftieth of the
// time.
//
// In: final counts of deleted elements; the kernel's lists of elements.
// Out: counts that never decrease while the process runs and the Service exists.
// Never: changes the kernel's tables, blocks the loop while it reads them.
package counters
