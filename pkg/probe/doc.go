// Package probe finds features that the tables use and the kernel lacks, and suggests a fix.
//
// In: the tables.
// Out: each missing feature with its name, the kernel's option and the module.
// Never: changes the ruleset; the batch for the kernel is not committed.
package probe
