package fault

import (
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls are the system calls of one thread.
type Calls struct {
	listener int
	tid      uint32
	decide   atomic.Pointer[func(*Call) Result]
}

// Call is a system call that waits.
type Call struct {
	// Number says which it is, as unix.SYS_SENDTO.
	Number int
	args   [6]uint64
}

// Result is what becomes of a call. The zero value lets it through.
type Result struct {
	// Errno makes it fail without being made.
	Errno unix.Errno
	// Value is what it returns, where Done says that it need not be made.
	Value int
	Done  bool
}

// watched are the calls that can be meddled with: those by which a netlink socket is used. A call that Go makes without telling
// its scheduler, as socket, must not wait for a goroutine: a collection that begins meanwhile would wait for both.
var watched = []int{unix.SYS_BIND, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SETSOCKOPT}

// Intercept has the calling thread's calls decided on, those of the goroutine that is locked to it. Until [Calls.Decide] all are let
// through.
func Intercept(t testing.TB) *Calls {
	t.Helper()
	const number = 0 // the offset of seccomp_data.nr
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number}}
	for _, call := range watched {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(call)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The runtime's signals must not interrupt a call that is decided on: it would be made again.
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Fatalf("set a filter for system calls: %v", errno)
	}
	c := &Calls{listener: int(fd), tid: uint32(unix.Gettid())}
	go c.serve()
	return c
}

// Decide has f decide on each call from now on; nil lets all through. It is called by another goroutine, one call at a time.
func (c *Calls) Decide(f func(*Call) Result) {
	if f == nil {
		c.decide.Store(nil)
		return
	}
	c.decide.Store(&f)
}

// notification and response are struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// letThrough is SECCOMP_USER_NOTIF_FLAG_CONTINUE, which golang.org/x/sys/unix lacks.
const letThrough = 1

// serve ends with the thread.
func (c *Calls) serve() {
	defer func() { _ = unix.Close(c.listener) }()
	for {
		poll := []unix.PollFd{{Fd: int32(c.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // the caller has gone
		}
		r := c.answer(&n)
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(c.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	}
}

func (c *Calls) answer(n *notification) response {
	r := response{id: n.id, flags: letThrough}
	decide := c.decide.Load()
	if decide == nil || n.pid != c.tid {
		return r
	}
	switch result := (*decide)(&Call{Number: int(n.nr), args: n.args}); {
	case result.Errno != 0:
		r.flags, r.errno = 0, -int32(result.Errno)
	case result.Done:
		r.flags, r.val = 0, int64(result.Value)
	}
	return r
}

// Receive makes a recvfrom, and returns what has come.
func (c *Call) Receive() ([]byte, error) {
	buf := make([]byte, c.args[2])
	n, _, err := unix.Recvfrom(int(c.args[0]), buf, int(c.args[3]))
	return buf[:max(n, 0)], err
}

// Return makes a recvfrom return bytes.
func (c *Call) Return(b []byte) Result {
	if len(b) == 0 {
		return Result{Done: true}
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMWritev(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(c.args[1]), Len: len(b)}}, 0)
	if err != nil {
		return Result{Errno: unix.EFAULT}
	}
	return Result{Done: true, Value: n}
}

// Sent returns what a sendto is to send.
func (c *Call) Sent() []byte {
	b := make([]byte, c.args[2])
	if len(b) == 0 {
		return b
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(c.args[1]), Len: len(b)}}, 0)
	if err != nil {
		return nil
	}
	return b[:n]
}

// Option returns the level and the option of a setsockopt.
func (c *Call) Option() (level, option int) { return int(c.args[1]), int(c.args[2]) }

// Socket is the descriptor of the socket that is used.
func (c *Call) Socket() int { return int(c.args[0]) }
