//go:build e2e || twin

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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
	"sync"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	repository = "../.."
	version    = "v9.9.9-test"
	revision   = "0123456789abcdef"
	epoch      = 1700000000
)

// made is the result of hack/image.sh.
type made struct {
	// dir is the folder of the source, digest what the script printed.
	dir, digest string
	// archive is the tar file as it is, blobs what is in it by name.
	archive []byte
	blobs   map[string][]byte
	index   manifest
	images  map[string]*oneImage
}

// oneImage is the image of one architecture.
type oneImage struct {
	manifest manifest
	config   config
	// layerSize is the compressed size of the layer, entries what is in it.
	layerSize int64
	entries   []entry
}

// entry is a file, folder or link in a layer.
type entry struct {
	*tar.Header
	content []byte
}

// manifest is what an OCI index and an OCI manifest have.
type manifest struct {
	MediaType   string            `json:"mediaType"`
	Manifests   []descriptor      `json:"manifests"`
	Config      descriptor        `json:"config"`
	Layers      []descriptor      `json:"layers"`
	Annotations map[string]string `json:"annotations"`
}

type descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	ArtifactType string            `json:"artifactType"`
	Platform     map[string]string `json:"platform"`
}

type config struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	Config struct {
		User, WorkingDir     string
		Env, Entrypoint, Cmd []string
		Labels               map[string]string
	} `json:"config"`
}

// makeTwice makes the image from two copies of the source in different folders, at the same time: one whose files are of
// today, and one of a user with another umask, time zone and taste, whose files are old.
func makeTwice(t *testing.T, architectures ...string) (first, second *made) {
	t.Helper()
	one, other := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "another", "folder")
	lab.Must(t, copySource(one, repository, 0, time.Now()))
	lab.Must(t, copySource(other, one, 0o077, time.Unix(1e9, 0)))
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { first, errs[0] = makeImage(one, "umask 022", architectures) })
	wg.Go(func() {
		settings := "umask 077; export TZ=UTC-7 LC_ALL=C GOFLAGS=-buildvcs=auto GOAMD64=v2 GOARM64=v8.1 GOEXPERIMENT=unknown"
		second, errs[1] = makeImage(other, settings, architectures)
	})
	wg.Wait()
	lab.Must(t, errors.Join(errs[:]...))
	return first, second
}

// makeImage runs hack/image.sh in a copy of the source, after the settings of a shell.
func makeImage(dir, settings string, architectures []string) (*made, error) {
	cmd := exec.Command("bash", "-c", settings+"; exec hack/image.sh")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "VERSION="+version, "REVISION="+revision, fmt.Sprint("SOURCE_DATE_EPOCH=", epoch),
		"ARCHITECTURES="+strings.Join(architectures, " "), "IMAGE=registry.example.com/kube-nftproxy:v9", "PUSH=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("hack/image.sh: %w\n%s", err, stderr.Bytes())
	}
	_, digest, ok := strings.Cut(string(out), "\ndigest: ")
	if !ok {
		return nil, fmt.Errorf("hack/image.sh prints no digest:\n%s", out)
	}
	m := &made{dir: dir, digest: strings.TrimSpace(digest), blobs: map[string][]byte{}, images: map[string]*oneImage{}}
	if m.archive, err = os.ReadFile(filepath.Join(dir, "bin/image/kube-nftproxy.tar")); err != nil {
		return nil, err
	}
	return m, m.read()
}

// copySource copies what the image is made of. The copy's files lack some permissions and have another time.
func copySource(to, from string, umask os.FileMode, modified time.Time) error {
	for _, dir := range []string{"cmd", "pkg", "hack"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(from, dir))); err != nil {
			return err
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "LICENSE"} {
		content, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, file), content, 0o644); err != nil {
			return err
		}
	}
	return filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return errors.Join(os.Chmod(path, info.Mode().Perm()&^umask), os.Chtimes(path, modified, modified))
	})
}

// read reads the tar file: an OCI layout with one index, of images with one layer each. Every blob must have its digest.
func (m *made) read() error {
	entries, err := readTar(bytes.NewReader(m.archive))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, isBlob := strings.CutPrefix(e.Name, "blobs/sha256/")
		if got := fmt.Sprintf("%x", sha256.Sum256(e.content)); isBlob && name != "" && name != got {
			return fmt.Errorf("read tar file: blob %s has digest %s", name, got)
		}
		m.blobs[e.Name] = e.content
	}
	var layout manifest
	if err := json.Unmarshal(m.blobs["index.json"], &layout); err != nil {
		return fmt.Errorf("read index.json: %w", err)
	}
	if len(layout.Manifests) != 1 || layout.Manifests[0].Digest != m.digest {
		return fmt.Errorf("read index.json: it has %v, want only %s", layout.Manifests, m.digest)
	}
	if err := m.decode(layout.Manifests[0], &m.index); err != nil {
		return err
	}
	for _, d := range m.index.Manifests {
		arch := d.Platform["architecture"]
		if m.images[arch], err = m.readImage(d); err != nil {
			return fmt.Errorf("read image for %s: %w", arch, err)
		}
	}
	return nil
}

// blob returns what a descriptor is about.
func (m *made) blob(d descriptor) ([]byte, error) {
	content := m.blobs[strings.Replace("blobs/"+d.Digest, ":", "/", 1)]
	if int64(len(content)) != d.Size {
		return nil, fmt.Errorf("read blob %s: %d bytes, want %d", d.Digest, len(content), d.Size)
	}
	return content, nil
}

func (m *made) decode(d descriptor, into any) error {
	content, err := m.blob(d)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

func (m *made) readImage(d descriptor) (*oneImage, error) {
	i := &oneImage{}
	if err := m.decode(d, &i.manifest); err != nil {
		return nil, err
	}
	if err := m.decode(i.manifest.Config, &i.config); err != nil {
		return nil, err
	}
	if len(i.manifest.Layers) != 1 || len(i.config.RootFS.DiffIDs) != 1 {
		return nil, fmt.Errorf("%d layers, want 1", len(i.manifest.Layers))
	}
	layer, err := m.blob(i.manifest.Layers[0])
	if err != nil {
		return nil, err
	}
	unzip, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(unzip)
	if err != nil {
		return nil, err
	}
	if got, want := fmt.Sprintf("sha256:%x", sha256.Sum256(content)), i.config.RootFS.DiffIDs[0]; got != want {
		return nil, fmt.Errorf("the layer's digest is %s, want %s", got, want)
	}
	i.layerSize = int64(len(layer))
	i.entries, err = readTar(bytes.NewReader(content))
	return i, err
}

func readTar(r io.Reader) (out []entry, err error) {
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		out = append(out, entry{h, content})
	}
}

// file returns the content of a file in an image.
func (i *oneImage) file(t *testing.T, name string) []byte {
	t.Helper()
	for _, e := range i.entries {
		if e.Name == name {
			return e.content
		}
	}
	t.Fatalf("the image has no file %s", name)
	return nil
}

// unpack writes the files of an image into a folder of their own.
func (m *made) unpack(t *testing.T, arch string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range m.images[arch].entries {
		path := filepath.Join(root, filepath.FromSlash(e.Name))
		var err error
		switch e.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(path, e.FileInfo().Mode().Perm())
		case tar.TypeSymlink:
			err = os.Symlink(e.Linkname, path)
		default:
			err = os.WriteFile(path, e.content, e.FileInfo().Mode().Perm())
		}
		lab.Must(t, err)
	}
	return root
}
