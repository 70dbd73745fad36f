// Package apply makes the kernel's tables equal to a plan. Each sync is one batch, which the kernel accepts as a whole
// or not at all. Only a repair of many deleted elements has several batches.
//
// In: a [plan.Planner], which reports its changes to a ledger. The ledger has the count and digest of the elements, the
// sizes of sets, the changes since the last batch, and unused chains that stay for a while.
// Out: the kernel's ruleset; the cost of each sync, as a [Result].
// Never: guesses the kernel's tables. After an error, and at the start, they are unknown until a comparison or a full
// sync.
//
// [Kernel.Sync] takes one of three ways. If the tables are known, it sends the ledger's changes. If they are unknown
// because of [Kernel.Doubt], but the listener heard only harmless commits, it trusts them again, and sends the changes.
// Otherwise it compares the tables with the ledger. It then adopts equal tables, and rewrites different tables.
package apply
