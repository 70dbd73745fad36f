// Package apply brings the kernel's tables to what is planned, in one batch that holds as a whole or not at all.
//
// In: a [plan.Planner].
// Out: the kernel's ruleset; what each sync cost, as a [Result].
// Never: a guess at what the kernel holds. After any error, and at the start, that is unknown until the kernel has been
// asked or everything has been written anew.
package apply
