// Package balance maps clients to slots, and slots to endpoints, for Services that choose an algorithm or weights.
//
// In: a [Method] with the address and port of a client; endpoints with their weights.
// Out: the slot of the client, equal to that of the kernel's expression jhash; the endpoint of each slot.
// Never: any state. Each result is a pure function of its arguments, so that all nodes agree.
package balance
