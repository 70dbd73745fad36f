package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Read reads the snapshot at a path, see [Decode]. It uses only a regular file that belongs to the user of this
// process, and that no other user can read or write.
func Read(path string, own Identity, now time.Time, use func(runtime.Object) error) (*Header, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !isPrivate(info, os.Geteuid()) {
		return nil, fmt.Errorf("%s is not a regular file of user %d alone: %v, of user %d", path, os.Geteuid(), info.Mode(),
			info.Sys().(*syscall.Stat_t).Uid)
	}
	return Decode(file, info.Size(), own, now, use)
}

// isPrivate reports whether a file is a regular one that belongs to a user, and that only this user can read or write.
func isPrivate(info fs.FileInfo, user int) bool {
	owner, known := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	return mode == mode.Perm()&0o700 && known && int(owner.Uid) == user
}

// Write replaces the snapshot at a path. After a failure or a crash, the path has the previous snapshot.
func Write(path string, h *Header, objects iter.Seq[runtime.Object]) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(next))
		}
	}()
	if err := errors.Join(Encode(file, h, objects), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncFolder(dir)
}

// syncFolder makes a rename permanent.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
