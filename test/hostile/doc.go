// Package hostile attacks the built program with objects that a tenant of the cluster may write, on a node with real packets. Tenant
// bank has one Service; tenant evil writes whatever the API server accepts.
//
// In: the program, and objects that twin, multiply, collide and flood.
// Out: where bank's packets go, when bank's changes are in the kernel, and what the attack costs in elements, memory and log lines.
// Never: the program's packages for what it must do; a metric or an Event by name.
package hostile
