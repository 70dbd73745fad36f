// Package fault makes system calls of one thread fail, or answer something else, as a test wants: the errors are those
// that the code under test sees from its kernel, and it needs no hook of its own. It asks the kernel to be asked (a seccomp filter
// with user notification), so the thread stays as it is until it ends; a test that calls lab.EnterNamespace has such a thread.
//
// In: a thread that is locked to its goroutine and never used again, and the privilege to set a filter.
// Out: calls, one by one, to be let through, refused or answered.
// Never: calls of other threads of this process. Programs that the thread starts are let through.
package fault
