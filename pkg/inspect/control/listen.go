package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// mode permits only the owner and root to connect.
const mode = 0o600

// socket is a listening socket at a path.
type socket struct {
	*net.UnixListener
	path string
	file fs.FileInfo
}

// listen creates a socket at a path and replaces an existing socket: one that a killed program left, or that of an
// older program which this one replaces. At no time can another user connect, and at no time is there no socket.
func listen(ctx context.Context, path string) (*socket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("make the control socket: %s exists and is not a socket", path)
	}
	// The kernel applies the socket's mode before the socket gets its name.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), mode) })
		return errors.Join(err, failed)
	}}
	beside := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	l, err := private.Listen(ctx, "unix", beside)
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	s := &socket{UnixListener: l.(*net.UnixListener), path: path}
	s.SetUnlinkOnClose(false)
	if s.file, err = os.Lstat(beside); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the control socket: %w", err), s.UnixListener.Close(), os.Remove(beside))
	}
	return s, nil
}

// owned reports whether the path still leads to this socket.
func (s *socket) owned() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.file)
}

// Close removes the socket, unless another program has put its own there.
func (s *socket) Close() error {
	var err error
	if s.owned() {
		err = os.Remove(s.path)
	}
	return errors.Join(err, s.UnixListener.Close())
}

// abandoned reports whether no program listens at a path: there is no socket, or a killed program left it.
func abandoned(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}
