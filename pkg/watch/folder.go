package watch

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checksum tells one content from another.
type checksum [sha256.Size]byte

// content is what a file holds, or why it cannot be read.
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

// readFolder returns the contents of all manifests in a folder, by path.
func readFolder(folder string) (map[string]content, error) {
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
		if data, err := readRegular(path); !errors.Is(err, fs.ErrNotExist) {
			contents[path] = content{data, err}
		}
	}
	return contents, nil
}

func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// readRegular takes what isn't a regular file for absent: a pipe would block.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(path)
}
