// Package snapshot writes the API objects of a process to a file, and reads them in a later process.
//
// In: API objects with the resource versions of their kinds.
// Out: a file, and the objects of a file that this node, this cluster and this version of the program wrote.
// Never: trusts a file, decides whether objects are used.
//
// A file is a stream of frames, as in a watch: the [Header] as JSON, then each object in the API's protobuf. The
// SHA-256 of all frames follows.
package snapshot
