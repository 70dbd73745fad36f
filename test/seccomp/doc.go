// Package seccomp compiles a seccomp profile of a container to a filter of the kernel, and installs it, as a container runtime does.
//
// In: a profile in the format of OCI runtimes.
// Out: a filter of this architecture; a thread with this filter.
// Never: testing.T.
package seccomp
