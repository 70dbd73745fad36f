package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is the longest wait between two checks of the context.
const patience = 100 * time.Millisecond

// socket is a non-blocking socket with waits by poll on the calling thread: a probe is a few system calls without other
// goroutines.
type socket struct {
	ctx      context.Context
	fd       int
	deadline time.Time
	// port is the source port of packets through a raw socket, which receives the ICMP errors about all ports.
	port uint16
	// from is the source port of packets; 0 for ICMP.
	from uint16
}

// domain returns the socket domain of an address.
func domain(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// newSocket opens a non-blocking socket.
func newSocket(addr netip.Addr, kind, proto int) (int, error) {
	fd, err := unix.Socket(domain(addr), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	return fd, nil
}

// sockaddr converts an address for a system call.
func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// addrPort converts an address from a system call; other kinds of address give the zero value.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// reportErrors makes the socket return every ICMP error, including transient ones.
func reportErrors(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return os.NewSyscallError("set IP_RECVERR", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	}
	return os.NewSyscallError("set IPV6_RECVERR", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
}

// await waits until the socket is ready for events or has an error. At the deadline it returns ETIMEDOUT.
func (s socket) await(events int16) error {
	for {
		if err := s.ctx.Err(); err != nil && err != context.DeadlineExceeded {
			return err
		}
		left := time.Until(s.deadline)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		timeout := unix.NsecToTimespec(int64(min(left, patience)))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, &timeout, nil)
		if n > 0 {
			return nil
		}
		if err != nil && err != unix.EINTR {
			return err
		}
	}
}

// pending returns and clears the socket's error. It also finds an error that a connecting TCP socket only recorded because the
// answer came while the socket was still sending, which is usual on a veth pair. Otherwise such a socket would wait a second for
// its second SYN to be rejected.
func (s socket) pending() error {
	number, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if number != 0 {
		return unix.Errno(number)
	}
	return nil
}

// connect connects a TCP socket.
func (s socket) connect(to netip.AddrPort) error {
	err := unix.Connect(s.fd, sockaddr(to))
	if err != unix.EINPROGRESS {
		return err
	}
	if err := s.pending(); err != nil {
		return err
	}
	waited := s.await(unix.POLLOUT)
	if err := s.pending(); err != nil {
		return err
	}
	return waited
}

// read reads available data, and waits if there is none. Zero bytes are the end of a connection, or an empty datagram.
func (s socket) read(buf []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, buf)
		if err != unix.EAGAIN && err != unix.EINTR {
			return n, err
		}
		if err := s.await(unix.POLLIN); err != nil {
			return 0, err
		}
	}
}

// concerns reports whether an error of a system call is about this socket's own packets. The queue of errors has the packet that
// an ICMP error quotes; an error without an entry is no ICMP error.
func (s socket) concerns(err error) bool {
	if s.port == 0 || err == unix.ETIMEDOUT {
		return true
	}
	quoted := make([]byte, 64)
	n, _, _, _, failed := unix.Recvmsg(s.fd, quoted, nil, unix.MSG_ERRQUEUE)
	return failed != nil || n < 2 || binary.BigEndian.Uint16(quoted) == s.port
}

// packetInfo is an IP_PKTINFO or IPV6_PKTINFO control message that sets the source of a datagram to addr.
func packetInfo(addr netip.Addr) []byte {
	if addr.Is4() {
		info := unix.Inet4Pktinfo{Spec_dst: addr.As4()}
		return control(unix.IPPROTO_IP, unix.IP_PKTINFO, unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)))
	}
	info := unix.Inet6Pktinfo{Addr: addr.As16()}
	return control(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)))
}

// control encodes one control message.
func control(level, kind int32, data []byte) []byte {
	message := make([]byte, unix.CmsgSpace(len(data)))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&message[0]))
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(len(data)))
	copy(message[unix.CmsgLen(0):], data)
	return message
}

// localAddr returns the destination address of a datagram from its control messages.
func localAddr(oob []byte) (netip.Addr, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse control message: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO:
			return netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0])).Addr), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO:
			return netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&m.Data[0])).Addr), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("parse control message: no packet information in %d bytes", len(oob))
}
