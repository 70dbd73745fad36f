package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pauseImage is the image of a pod's first container, which only keeps its namespaces.
const pauseImage = "localhost/pause:1"

// image is one that the tests ask for.
type image struct {
	entrypoint, command []string
	names               []string
}

// sortImages returns the images to make for the names that e2e.test lists: its own programs, and shells for the other names that it needs
// here.
func sortImages(names []string) map[string]image {
	images := map[string]image{
		"pause.tar":      {command: []string{"sleep", "infinity"}, names: []string{pauseImage}},
		"agnhost.tar":    {entrypoint: []string{"/agnhost"}, command: []string{"pause"}},
		"regression.tar": {entrypoint: []string{"/regression-issue-74839"}},
		"shells.tar":     {command: []string{"sh"}, names: []string{shellImage}},
	}
	for _, name := range names {
		file := "shells.tar"
		switch base, _, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":"); base {
		case "agnhost":
			file = "agnhost.tar"
		case "regression-issue-74839":
			file = "regression.tar"
		case "busybox", "distroless-iptables", "glibc-dns-testing":
		default:
			continue
		}
		i := images[file]
		i.names = append(i.names, name)
		images[file] = i
	}
	return images
}

// makeImages writes the archives. All images have the same file system: the nodes' with the programs of the tests.
func (w *world) makeImages(ctx context.Context) error {
	listing, err := exec.CommandContext(ctx, w.program("e2e.test"), "--list-images").Output()
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	dir := w.path("images")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	layer := filepath.Join(dir, "layer")
	programs := map[string]string{"agnhost": w.program("agnhost"), "agnhost-2": w.program("agnhost"), "regression-issue-74839": w.program("regression-issue-74839")}
	digest, err := writeLayer(layer, w.root, programs)
	if err != nil {
		return fmt.Errorf("make a layer: %w", err)
	}
	for name, i := range sortImages(strings.Fields(string(listing))) {
		if len(i.names) == 0 { // this release has no such image
			continue
		}
		if err := i.write(filepath.Join(dir, name), layer, digest); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		w.images = append(w.images, name)
	}
	return os.Remove(layer)
}

// writeLayer writes a root file system and programs, named by their files in its root, as a tar file, and returns its digest.
func writeLayer(file, root string, programs map[string]string) (string, error) {
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer out.Close()
	hash := sha256.New()
	layer := tar.NewWriter(io.MultiWriter(out, hash))
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return addFile(layer, name, path)
	})
	for name, path := range programs {
		err = errors.Join(err, addFile(layer, name, path))
	}
	if err := errors.Join(err, layer.Close(), out.Close()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// addFile adds a file, a folder or a link. It belongs to root.
func addFile(layer *tar.Writer, name, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	var link string
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name, header.Uid, header.Gid, header.Uname, header.Gname = name, 0, 0, "", ""
	if err := layer.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.Open(path)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.Copy(layer, content)
	return err
}

// write writes an OCI archive with one layer.
func (i image) write(file, layer, digest string) error {
	type object = map[string]any
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	add := func(name string, content []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	blob := func(kind string, o object) object {
		content, marshalErr := json.Marshal(o)
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		err = errors.Join(err, marshalErr, add("blobs/sha256/"+sum, content))
		return object{"mediaType": "application/vnd.oci.image." + kind + ".v1+json", "digest": "sha256:" + sum, "size": len(content)}
	}
	info, err := os.Stat(layer)
	if err != nil {
		return err
	}
	config := blob("config", object{
		"architecture": "amd64", "os": "linux", "rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
		"config": object{"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "Entrypoint": i.entrypoint, "Cmd": i.command, "WorkingDir": "/"},
	})
	manifest := blob("manifest", object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []object{
		{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + digest, "size": info.Size()},
	}})
	var manifests []object
	for _, name := range i.names {
		named := object{"platform": object{"os": "linux", "architecture": "amd64"}, "annotations": object{"io.containerd.image.name": name}}
		for k, v := range manifest {
			named[k] = v
		}
		manifests = append(manifests, named)
	}
	index, indexErr := json.Marshal(object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests})
	return errors.Join(err, indexErr, add("index.json", index), add("oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`)),
		addFile(archive, "blobs/sha256/"+digest, layer), archive.Close(), out.Close())
}
