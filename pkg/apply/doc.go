// Package apply makes the kernel's tables equal to a plan. Each sync is one batch, which the kernel accepts as a whole or not at all. Only a repair
// of many deleted elements has several batches.
//
// In: a [plan.Planner], which reports its changes to a ledger: counts, sizes and digests of the elements, the changes since the last
// batch, and unused chains that stay for a while.
// Out: the kernel's ruleset; the cost of each sync, as a [Result].
// Never: guesses the kernel's tables. After an error, and at the start, they are unknown until a comparison or a full sync.
package apply
