// Package house has the house style as tests: what a reviewer would otherwise have to say again and again. It has no code
// of its own.
//
// In: the source of this repository.
// Out: complaints.
// Never: a matter of taste.
package house
