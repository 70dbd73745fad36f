package manifests

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// checksum identifies the content of a file.
type checksum [sha256.Size]byte

// content is the content of a file, or the error of the read.
type content struct {
	data []byte
	err  error
}

func (c content) sum() checksum {
	if c.err != nil {
		return sha256.Sum256([]byte(c.err.Error()))
	}
	return sha256.Sum256(c.data)
}

// readFolder returns the contents of all manifests in a folder, by path. An error of one file is in its [content]. If
// this process lacks file descriptors or memory, readFolder returns an error.
func readFolder(folder string, read func(path string) ([]byte, error)) (map[string]content, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	contents := map[string]content{}
	for _, entry := range entries {
		if !isManifest(entry.Name()) {
			continue
		}
		path := filepath.Join(folder, entry.Name())
		data, err := read(path)
		if isExhaustion(err) {
			return nil, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			contents[path] = content{data, err}
		}
	}
	return contents, nil
}

// isExhaustion reports whether an error would affect every file: no file descriptors or no memory.
func isExhaustion(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// reader reads files, each on a goroutine of its own: no system call can interrupt a read that does not end, such as
// that of /proc/kmsg.
type reader struct {
	// most is the largest size of a file in bytes, patience the longest time to read one.
	most     int64
	patience time.Duration
	// readAll is [readAtMost].
	readAll func(path string, size, most int64) ([]byte, error)
	// pending are the reads that have not ended in time, by file. A file is not read again before its read has ended.
	pending map[inode]<-chan content
}

// inode identifies a file.
type inode struct{ device, number uint64 }

func newReader() *reader {
	return &reader{most: largestFile, patience: readPatience, readAll: readAtMost, pending: map[inode]<-chan content{}}
}

// read reads a file. It treats a file that is not regular as absent, because a pipe would block. It returns an error
// for a file that is too large, which it does not read, or that cannot be read in time.
func (r *reader) read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	if info.Size() > r.most {
		return nil, tooLarge(path, r.most)
	}
	stat := info.Sys().(*syscall.Stat_t)
	file := inode{stat.Dev, stat.Ino}
	done, pending := r.pending[file]
	if pending && len(done) == 0 {
		return nil, r.slow(path)
	}
	delete(r.pending, file)
	result := make(chan content, 1)
	go func() {
		data, err := r.readAll(path, info.Size(), r.most)
		result <- content{data, err}
	}()
	select {
	case c := <-result:
		return c.data, c.err
	case <-time.After(r.patience):
		r.pending[file] = result
		return nil, r.slow(path)
	}
}

func (r *reader) slow(path string) error {
	return fmt.Errorf("%s cannot be read within %v", path, r.patience)
}

// readAtMost reads a file of about the given size. It returns an error if the file has more than most bytes.
func readAtMost(path string, size, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead) // growing while reading takes more than twice the memory
	_, err = b.ReadFrom(io.LimitReader(f, most+1))
	if err == nil && int64(b.Len()) > most {
		return nil, tooLarge(path, most)
	}
	return b.Bytes(), err
}

func tooLarge(path string, most int64) error {
	return fmt.Errorf("%s has more than %d bytes, which is too much", path, most)
}
