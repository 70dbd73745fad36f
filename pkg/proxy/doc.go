// Package proxy is the loop that keeps the kernel's tables as planned. One goroutine owns all mutable state of the
// loop. Parts beside the tables listen to the loop ([beside.Listener]). A guard decides when the loop checks for
// foreign changes of the tables.
//
// In: names of changed objects from a tracker, objects from a source.
// Out: the kernel's tables, metrics, health, reports of problems.
// Never: makes an element or a rule, or calls the API.
//
// A change passes through these functions: step selects the next task. sync determines the order of planning and
// commits. absorb reads the Node and the ServiceCIDRs, and queues the changed Services. planRound builds and plans some
// of them, in turns by namespace. commit sends the plan, and announce reports the outcome.
package proxy
