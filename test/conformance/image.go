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
		case "pause":
			file = "pause.tar"
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
	files, err := w.registry()
	if err != nil {
		return fmt.Errorf("make the image of agnhost's registry: %w", err)
	}
	for _, name := range []string{"agnhost", "localhost.crt", "localhost.key", "regression-issue-74839", "coredns"} {
		files[name] = w.program(name)
	}
	files["agnhost-2"] = files["agnhost"]
	layer, err := writeLayer(filepath.Join(dir, "layer"), w.root, files)
	if err != nil {
		return fmt.Errorf("make a layer: %w", err)
	}
	for name, i := range sortImages(strings.Fields(string(listing))) {
		if len(i.names) == 0 { // this release has no such image
			continue
		}
		if err := i.write(filepath.Join(dir, name), layer); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		w.images = append(w.images, name)
	}
	return os.Remove(layer.path)
}

// registry makes the image that agnhost's registry serves, and returns its files by their names in agnhost's image. A test pulls it from
// a node port on loopback, and runs it.
func (w *world) registry() (map[string]string, error) {
	dir := w.path("registry")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	layer, err := writeLayer(filepath.Join(dir, "layer"), "", map[string]string{
		"usr/bin/sleep": w.root + "/usr/bin/sleep", "lib64/ld-linux-x86-64.so.2": w.root + "/lib64/ld-linux-x86-64.so.2",
		"lib/x86_64-linux-gnu/libc.so.6": w.root + "/lib/x86_64-linux-gnu/libc.so.6",
	})
	if err != nil {
		return nil, err
	}
	config, manifest, err := image{command: []string{"/usr/bin/sleep", "infinity"}}.describe(layer)
	if err != nil {
		return nil, err
	}
	const root = "var/registry/pause/"
	place := func(kind, digest string) string {
		return root + kind + "/sha256/" + digest[:2] + "/" + digest + "/data"
	}
	files := map[string]string{place("blobs", layer.digest): layer.path}
	for name, content := range map[string][]byte{
		place("blobs", digest(config)): config, place("manifests", digest(manifest)): manifest,
		root + "manifests/testing": []byte("sha256:" + digest(manifest)),
	} {
		files[name] = filepath.Join(dir, digest(content))
		err = errors.Join(err, os.WriteFile(files[name], content, 0o644))
	}
	return files, err
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// layer is a tar file with its digest and its size.
type layer struct {
	path, digest string
	size         int64
}

// writeLayer writes a root file system, if there is one, and files by their names in it, as a tar file.
func writeLayer(path, root string, files map[string]string) (layer, error) {
	out, err := os.Create(path)
	if err != nil {
		return layer{}, err
	}
	defer out.Close()
	hash := sha256.New()
	archive := tar.NewWriter(io.MultiWriter(out, hash))
	if root != "" {
		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == root {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return addFile(archive, name, path)
		})
	}
	for name, path := range files {
		target, linkErr := filepath.EvalSymlinks(path)
		err = errors.Join(err, linkErr, addFile(archive, name, target))
	}
	if err := errors.Join(err, archive.Close()); err != nil {
		return layer{}, err
	}
	info, err := out.Stat()
	if err != nil {
		return layer{}, err
	}
	return layer{path, fmt.Sprintf("%x", hash.Sum(nil)), info.Size()}, out.Close()
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

// object is one of JSON.
type object = map[string]any

// descriptor names a part of an image.
func descriptor(kind, digest string, size int64) object {
	return object{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": size}
}

// describe returns an image's configuration and manifest.
func (i image) describe(l layer) (config, manifest []byte, err error) {
	config, err = json.Marshal(object{
		"architecture": "amd64", "os": "linux", "rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + l.digest}},
		"config": object{"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "Entrypoint": i.entrypoint, "Cmd": i.command, "WorkingDir": "/"},
	})
	if err != nil {
		return nil, nil, err
	}
	manifest, err = json.Marshal(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("config.v1+json", digest(config), int64(len(config))),
		"layers": []object{descriptor("layer.v1.tar", l.digest, l.size)},
	})
	return config, manifest, err
}

// write writes an OCI archive with one layer.
func (i image) write(path string, l layer) error {
	config, manifest, err := i.describe(l)
	if err != nil {
		return err
	}
	var manifests []object
	for _, name := range i.names {
		d := descriptor("manifest.v1+json", digest(manifest), int64(len(manifest)))
		d["platform"] = object{"os": "linux", "architecture": "amd64"}
		d["annotations"] = object{"io.containerd.image.name": name}
		manifests = append(manifests, d)
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests})
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for name, content := range map[string][]byte{
		"oci-layout": []byte(`{"imageLayoutVersion": "1.0.0"}`), "index.json": index,
		"blobs/sha256/" + digest(config): config, "blobs/sha256/" + digest(manifest): manifest,
	} {
		headerErr := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
		_, writeErr := archive.Write(content)
		err = errors.Join(err, headerErr, writeErr)
	}
	return errors.Join(err, addFile(archive, "blobs/sha256/"+l.digest, l.path), archive.Close(), out.Close())
}
