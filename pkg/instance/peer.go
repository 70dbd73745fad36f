package instance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// peer is a process that is connected to this one.
type peer struct {
	net.Conn
	lines *bufio.Reader
	// proof receives the peer's proof.
	proof *verifier
}

// newPeer prepares a connection, which the end of the context closes. The peer must answer within a time limit. newPeer
// fails if the peer belongs to a user other than root and this process's user, so that no other user uses up the guests
// of a holder.
func newPeer(ctx context.Context, conn net.Conn) (*peer, error) {
	proof, err := newVerifier()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	context.AfterFunc(ctx, func() {
		_ = conn.Close() // nothing is lost
		proof.close()
	})
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var user *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		user, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if user.Uid != 0 && int(user.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the socket %s is held by a process of user %d (pid %d), which is passed over",
			conn.RemoteAddr(), user.Uid, user.Pid)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &peer{conn, bufio.NewReaderSize(conn, longest), proof}, nil
}

func send(to io.Writer, m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// receive reads one line of bounded length.
func receive(from *bufio.Reader) (m message, err error) {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(line, &m)
}
