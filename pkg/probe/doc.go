// Package probe finds out what the kernel lacks of all that our tables use, and says what to do about it.
//
// In: the tables.
// Out: for each thing that is missing its name, the kernel's option and the module that has it.
// Never: a change of the ruleset; the kernel is asked by a batch that isn't committed.
package probe
