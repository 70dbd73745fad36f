// Package proxy is the loop that keeps the kernel at what the cluster wants. One goroutine owns everything that changes.
//
// In: names that a tracker has marked, objects from a source.
// Out: the kernel's tables, metrics, health, reports of what could not be used.
// Never: an element, a rule or an API call of its own.
package proxy
