// Package balance maps clients to slots, and slots to endpoints, for Services that choose an algorithm or weights.
//
// In: a [Method]; endpoints with their weights; the bytes that the kernel hashes for a client.
// Out: the endpoint of each slot; the client's slot, equal to that of the kernel's expression jhash.
// Never: any state. Each result is a pure function of its arguments, so that all nodes agree.
package balance
