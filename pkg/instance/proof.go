package instance

import (
	"crypto/rand"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// challenge requests a proof of CAP_NET_ADMIN over this network namespace: a netlink message with the token to the
// port. The kernel lets a process send netlink messages to other processes only with this capability, and only within
// a network namespace (netlink_sendmsg in net/netlink/af_netlink.c).
type challenge struct {
	Port  uint32 `json:"port,omitempty"`
	Token string `json:"token,omitempty"`
}

// answer returns the content of the message that answers the challenge. Its first bytes are not a valid header of
// netlink, because the other process may have sent the port of a third one. The name prevents that a proof for one
// instance is used for another.
func (c challenge) answer(name string) string { return name + c.Token }

// prove answers another process's challenge.
func (c challenge) prove(name string) error {
	if c.Port == 0 {
		return nil // port 0 is the kernel
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: c.Port}
	err = unix.Sendto(fd, []byte(c.answer(name)), unix.MSG_DONTWAIT, to)
	return errors.Join(os.NewSyscallError("sendto", err), unix.Close(fd))
}

// verifier receives the answer to its challenge.
type verifier struct {
	challenge
	socket *os.File
}

func newVerifier() (*verifier, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	v := &verifier{challenge{Token: rand.Text()}, os.NewFile(uintptr(fd), "netlink")}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		v.close()
		return nil, os.NewSyscallError("bind", err)
	}
	v.Port = at.(*unix.SockaddrNetlink).Pid
	return v, nil
}

func (v *verifier) close() { _ = v.socket.Close() } // nothing is lost

var errUnproven = errors.New("it does not prove that it has CAP_NET_ADMIN over this network namespace")

// verify waits for the answer to the challenge.
func (v *verifier) verify(name string) error {
	raw, err := v.socket.SyscallConn()
	if err == nil {
		err = v.socket.SetReadDeadline(time.Now().Add(patience))
	}
	for buffer := make([]byte, longest); err == nil; {
		var n int
		var from unix.Sockaddr
		var failed error
		err = raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		sender, ok := from.(*unix.SockaddrNetlink)
		if err = errors.Join(err, failed); err == nil && ok && sender.Pid != 0 && string(buffer[:n]) == v.answer(name) {
			return nil
		}
	}
	return errUnproven
}
