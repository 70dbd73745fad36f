// Package apply makes the kernel's tables those of a plan, in one batch that the kernel accepts as a whole or not at all.
//
// In: a [plan.Planner], which reports its changes to a ledger: counts, sizes and digests of the elements, the changes since the last
// batch, and unused chains that stay for a while.
// Out: the kernel's ruleset; the cost of each sync, as a [Result].
// Never: a guess at the kernel's tables. After any error, and at the start, they are unknown until a comparison or a full sync.
package apply
