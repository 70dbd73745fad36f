// Package hostile attacks the built program with objects that a tenant of the cluster may write, on a node with real packets.
// Tenant bank has one Service; tenant evil writes any objects that the API server accepts.
//
// In: the program, and objects that twin, multiply, collide and flood.
// Out: the destinations of bank's packets, the latency of bank's changes, and the attack's cost in elements, memory and log lines.
// Never: relies on the program's packages for the expected results, or on the name of a metric or Event.
package hostile
