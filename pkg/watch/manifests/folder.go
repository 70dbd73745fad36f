package manifests

import (
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

// readFolder returns the contents of all manifests in a folder, by path. An error of one file is in its [content]. If this process
// lacks file descriptors or memory, readFolder returns an error.
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

// readRegular reads a file. It treats a file that is not regular as absent, because a pipe would block.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	return readAtMost(path, largestFile)
}

// readAtMost reads a file. It returns an error if the file has more than most bytes.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes, which is too much", path, most)
	}
	return data, err
}
