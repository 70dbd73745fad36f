// Package release builds a release from a copy of the source, and verifies it: as a user does, and with changed files. It has no code of its own.
//
// In: the source of this repository.
// Out: complaints.
// Never: a registry other than on a loopback address; a change of the checkout.
package release
