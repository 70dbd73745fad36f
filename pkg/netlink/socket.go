package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// Socket is one netlink socket of netfilter, in the network namespace of the thread that opened it. It is not safe for
// concurrent use.
type Socket struct {
	fd  int
	buf []byte
	// sendRoom and receiveRoom are the known sizes of the socket's buffers in bytes; 0 if unknown.
	sendRoom, receiveRoom int
	// Seq is the number of the last sent message. Numbers are never reused, so that a late answer does not count as the
	// answer to a later request.
	Seq uint32
	// Broken is true if the socket may hold stale answers, or is unusable. The next call of Send or GrowReceiveBuffer
	// replaces it.
	Broken bool
}

const (
	// readBuffer is the size of one read. The kernel fills at most 32 KiB, so larger reads make dumps no faster.
	readBuffer = 64 << 10
	// patience is the time in microseconds to wait for a reply. The kernel makes each reply within the system call that
	// sends the request or reads the previous reply. So no load delays a reply, and a missing reply is lost.
	patience = 250_000
	// errorRoom is the space in bytes for replies. The kernel may answer every message of a failing batch with an
	// error.
	errorRoom = 4 << 20
)

// errTooSmall means that the kernel gave less memory than requested.
var errTooSmall = errors.New("the kernel gives the socket too little memory " +
	"(net.core.wmem_max or rmem_max may be too small)")

// Open opens a socket. Most requests need CAP_NET_ADMIN.
func Open() (*Socket, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	return &Socket{fd: fd, buf: make([]byte, readBuffer)}, nil
}

func open() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: patience})
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("bind netlink socket: %w", err), unix.Close(fd))
	}
	// These options are not required. They improve error messages, shorten replies, and reserve space for more replies.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, errorRoom)
	return fd, nil
}

// Close closes the socket.
func (s *Socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// FD returns the file descriptor, which changes when the socket is replaced.
func (s *Socket) FD() int { return s.fd }

// replace replaces a broken socket, which may hold unread answers or an unfinished dump, or may be closed. If replace
// cannot open another socket in the same network namespace, for example for lack of file descriptors, the old one
// stays.
func (s *Socket) replace() {
	fd, err := open()
	if err != nil || !sameNamespace(fd, s.fd) {
		_ = unix.Close(fd) // -1 after an error
		s.drain()
		return
	}
	_ = unix.Close(s.fd)
	s.fd, s.sendRoom, s.receiveRoom, s.Broken = fd, 0, 0, false
}

// sameNamespace reports whether two sockets are in the same network namespace, or one of them is not a socket.
func sameNamespace(a, b int) bool {
	one, err := unix.GetsockoptUint64(a, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	other, gone := unix.GetsockoptUint64(b, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err != nil || gone != nil || one == other
}

// drain discards late replies to an earlier request.
func (s *Socket) drain() {
	most := 1 << 10 // the descriptor may belong to another file by now, with endless content
	for _, err := range s.Receive(false) {
		_ = err // an error changes nothing: the socket is broken already
		if most--; most == 0 {
			return
		}
	}
}

// Send sends all messages of a buffer in one system call. It numbers them consecutively and returns the first number.
// The kernel processes the messages within that call: when Send returns, all replies are in the socket, except those of
// a dump.
func (s *Socket) Send(messages []byte) (first uint32, err error) {
	if s.Broken {
		s.replace()
	}
	first = s.Seq + 1
	for off := 0; off+unix.NLMSG_HDRLEN <= len(messages); off += int(binary.NativeEndian.Uint32(messages[off:])) {
		s.Seq++
		binary.NativeEndian.PutUint32(messages[off+8:], s.Seq)
	}
	// The socket must accept all messages at once, because netlink cannot split them.
	if need := len(messages) + len(messages)/4 + 4096; need > s.sendRoom {
		if err := grow(s.fd, &s.sendRoom, need, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE); err != nil {
			s.Broken = s.Broken || err != errTooSmall
			return first, fmt.Errorf("set send buffer to %d bytes: %w", need, err)
		}
	}
	err = unix.Sendto(s.fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	s.Broken = s.Broken || err != nil
	return first, err
}

// GrowReceiveBuffer reserves space for replies of n bytes, in addition to the usual space.
func (s *Socket) GrowReceiveBuffer(n int) error {
	const usual = 64 << 10
	if s.Broken {
		s.replace()
	}
	return grow(s.fd, &s.receiveRoom, n+usual, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE)
}

// grow raises the size of a socket's buffer to need bytes, if it is smaller. The kernel reports twice the requested
// size, and netlink compares the length of a message with the reported size.
func grow(fd int, room *int, need, option, force int) (err error) {
	if *room == 0 {
		*room, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	}
	if err != nil || need <= *room {
		return err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, need) == unix.EPERM {
		// In a user namespace, such as that of a rootless node, the limit is net.core.wmem_max.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, need)
	}
	if *room, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err == nil && *room < need {
		err = errTooSmall
	}
	return err
}

// Receive yields the messages in the socket. If wait is set, Receive waits for more, and a missing reply is an error.
// Otherwise the loop ends when the socket is empty. After each error, the socket is [Socket.Broken]. The loop continues
// after an incomplete message ([ErrTruncated]) and after the first ENOBUFS, which means that the kernel dropped
// replies. All other errors end the loop.
func (s *Socket) Receive(wait bool) iter.Seq2[Message, error] {
	flags := unix.MSG_DONTWAIT
	if wait {
		flags = 0
	}
	return func(yield func(Message, error) bool) {
		for dropped := false; ; {
			n, _, err := unix.Recvfrom(s.fd, s.buf, flags)
			switch {
			case err == unix.EINTR:
			case err == nil && n > 0:
				for m, err := range Messages(s.buf[:n]) {
					s.Broken = s.Broken || err != nil
					if !yield(m, err) {
						return
					}
				}
			case !wait && (err == unix.EAGAIN || err == nil):
				return
			default:
				last := dropped || err != unix.ENOBUFS
				dropped, s.Broken = true, true
				switch err {
				case nil:
					err = ErrTruncated
				case unix.EAGAIN:
					err = fmt.Errorf("no reply: %w", err)
				}
				if !yield(Message{}, err) || last {
					return
				}
			}
		}
	}
}

// Ask sends one request about objects of a family, and yields the messages of the answer. The last message is an error,
// the end of a dump (NLM_F_DUMP), or the acknowledgement (NLM_F_ACK). Without these flags, the answer has one message.
// If the caller stops early, the socket is [Socket.Broken].
func (s *Socket) Ask(typ, flags uint16, family uint8, attributes []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		var request Encoder
		request.Begin(typ, flags, 0, family)
		request.Buf = append(request.Buf, attributes...)
		request.Finish(0)
		seq, err := s.Send(request.Buf)
		if err != nil {
			yield(Message{}, fmt.Errorf("send request: %w", err))
			return
		}
		single := flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0
		for m, err := range s.Receive(true) {
			if err == nil && m.Seq != seq {
				continue
			}
			last := single || err != nil || m.Ends()
			if errno := m.Errno(); errno != 0 {
				err = errno
			}
			if more := yield(m, err); last {
				return
			} else if !more {
				s.Broken = true
				return
			}
		}
	}
}

// AskOne sends one request and returns the message that answers it.
func (s *Socket) AskOne(typ uint16, family uint8, attributes []byte) (answer Message, err error) {
	for answer, err = range s.Ask(typ, 0, family, attributes) {
	}
	return answer, err
}
