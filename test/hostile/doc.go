// Package hostile attacks the built program with objects that tenants of the cluster may write, and sends real
// packets. Tenant bank has one Service. Tenant evil writes hostile objects, in one or several namespaces. The program
// reads them as manifests, so some may be objects that the API server rejects.
//
// In: the program, and objects of evil: many, large, with equal hashes, or with bank's addresses. Out: the
// destinations of bank's packets, the latency of bank's changes, and the cost of the attack in elements, memory and
// log lines; the same after restarts, reboots, and on a new node. Never: relies on the program's packages for the
// expected results.
package hostile
