// Package house has the house style as tests, for remarks that a reviewer would otherwise repeat. It has no code of its own.
//
// In: the source of this repository.
// Out: violations.
// Never: checks a matter of taste.
package house
