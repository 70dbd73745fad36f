package command

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// fullFor is the time within which a full-size segment must be acknowledged. The kernel repeats a lost segment once in
// this time.
const fullFor = 2*tryFor + tryFor/2

// errSilent means that a segment was not acknowledged.
var errSilent = errors.New("not acknowledged")

// fullSize finds out whether the endpoint of a new connection receives full-size segments, and returns the size of such
// a segment. The error is errSilent only if the endpoint acknowledges a small segment, but no full-size one. It closes
// the connection.
//
// No application sees the segments: they repeat the sequence numbers before the first byte of the connection. The
// kernel of the endpoint discards such a segment as a duplicate, and acknowledges it at once (RFC 9293, section
// 3.10.7.4). The size is that of the first full segment of an upload, with the flag DF.
func fullSize(ctx context.Context, conn *net.TCPConn) (size int, err error) {
	file, err := conn.File()
	_ = conn.Close() // file has the same socket
	if err != nil {
		return 0, err
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	_ = file.Close()
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, err
	}
	const timestamps, sizeOfTimestamps, most = 1, 12, 1<<15 - 1
	size = int(info.Snd_mss)
	if info.Options&timestamps != 0 {
		size += sizeOfTimestamps // the repeated segments have none
	}
	size = min(size, most) // the greatest value of TCP_MAXSEG; only loopback has more
	if fd, err = repeat(ctx, fd, 1, tryFor); err == nil {
		fd, err = repeat(ctx, fd, size, fullFor)
	} else if errors.Is(err, errSilent) {
		err = errors.New("the endpoint does not acknowledge repeated segments")
	}
	if err != nil {
		fd, _ = repeat(ctx, fd, 0, 0) // without the lost segment, which the kernel would send until it gives up, the connection ends in order
	}
	return size, err
}

// repeat sends a segment with the n sequence numbers before the next byte of a connection, and waits until the segment
// is acknowledged. The kernel sends old sequence numbers only from a new socket. So repeat moves the connection to a
// new socket, with the interface by which containers move to another machine (TCP_REPAIR): it needs CAP_NET_ADMIN.
// repeat returns the socket that has the connection.
func repeat(ctx context.Context, old, n int, patience time.Duration) (fd int, err error) {
	local, err := unix.Getsockname(old)
	if err != nil {
		return old, err
	}
	remote, err := unix.Getpeername(old)
	if err != nil {
		return old, err
	}
	if err := unix.SetsockoptInt(old, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return old, err
	}
	received, fd, err := successor(old, local, n)
	if err != nil {
		return old, errors.Join(err, unix.SetsockoptInt(old, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOff)) // it closes the connection later
	}
	_ = unix.Close(old) // in repair mode, the kernel sends nothing
	if err := unix.Connect(fd, remote); err != nil {
		return fd, fmt.Errorf("move the connection: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, window(received)),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOff))
	if err == nil && n > 0 {
		_, err = unix.Write(fd, make([]byte, n))
	}
	if err != nil {
		return fd, fmt.Errorf("send a segment: %w", err)
	}
	return fd, acknowledged(ctx, fd, patience)
}

// repairOff ends the repair mode without a probe of the window (TCP_REPAIR_OFF_NO_WP).
const repairOff = -1

// successor returns a socket for the connection of another one, n sequence numbers earlier, and the next sequence
// number of the peer.
func successor(old int, local unix.Sockaddr, n int) (received uint32, fd int, err error) {
	sent, err := sequence(old, sendQueue)
	if err != nil {
		return 0, 0, err
	}
	if received, err = sequence(old, receiveQueue); err != nil {
		return 0, 0, err
	}
	fd, err = prepared(local, sent-uint32(n), received, n)
	return received, fd, err
}

// The queues of a socket: TCP_RECV_QUEUE and TCP_SEND_QUEUE.
const receiveQueue, sendQueue = 1, 2

// sequence returns the next sequence number of a queue.
func sequence(fd, queue int) (uint32, error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
		return 0, err
	}
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	return uint32(n), err
}

// prepared returns a socket in repair mode with a local address, the next sequence numbers of both queues, and the size
// of segments.
func prepared(local unix.Sockaddr, send, receive uint32, size int) (fd int, err error) {
	family := unix.AF_INET
	if _, is6 := local.(*unix.SockaddrInet6); is6 {
		family = unix.AF_INET6
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return 0, err
	}
	const smallest = 88 // of TCP_MAXSEG
	set := func(option, value int) {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value)
		}
	}
	set(unix.TCP_REPAIR, 1)
	set(unix.TCP_MAXSEG, max(size, smallest))
	set(unix.TCP_REPAIR_QUEUE, sendQueue)
	set(unix.TCP_QUEUE_SEQ, int(int32(send)))
	set(unix.TCP_REPAIR_QUEUE, receiveQueue)
	set(unix.TCP_QUEUE_SEQ, int(int32(receive)))
	if err == nil {
		err = unix.Bind(fd, local)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// window returns a struct tcp_repair_window: the peer accepts one segment of any size, because it discards the segment.
func window(received uint32) string {
	const size = 1<<16 - 1
	var b []byte
	for _, v := range []uint32{received, size, size, size, received} { // snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return string(b)
}

// acknowledged waits until all sent data are acknowledged.
func acknowledged(ctx context.Context, fd int, patience time.Duration) error {
	const pause = 5 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			return errors.Join(err, unix.Errno(code))
		}
		left, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return errSilent
		}
	}
}
