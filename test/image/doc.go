// Package image looks at what hack/image.sh makes: that the image holds what it should and nothing else, that it is the same
// wherever it is made, and that the program in it serves Services with an empty file system around it and the privileges that
// the DaemonSet gives. It has no code of its own.
//
// In: the source of this repository.
// Out: complaints.
// Never: the library that makes the image, so that it isn't compared with itself; a change below bin/.
package image
