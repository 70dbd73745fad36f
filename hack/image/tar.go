package main

import (
	"archive/tar"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// file is a file of a tar file, a link if it leads to somewhere.
type file struct {
	name    string
	mode    int64
	content []byte
	link    string
}

// writeTar writes files and the folders that they are in, sorted by name, all of root and of one time.
func writeTar(w io.Writer, files []file, at time.Time) error {
	all := map[string]file{}
	for _, f := range files {
		all[f.name] = f
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			all[dir+"/"] = file{name: dir + "/", mode: 0o755}
		}
	}
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := all[name].write(out, at); err != nil {
			return err
		}
	}
	return out.Close()
}

func (f file) write(w *tar.Writer, at time.Time) error {
	h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at, Typeflag: tar.TypeReg}
	switch {
	case strings.HasSuffix(f.name, "/"):
		h.Typeflag = tar.TypeDir
	case f.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.content)
	return err
}
