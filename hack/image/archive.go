package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeArchive writes the tar file: an OCI layout, and beside it what a Docker without containerd's image store reads.
func (s settings) writeArchive(index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          familiar(s.tag),
		"org.opencontainers.image.ref.name": s.tag.TagStr(),
	}))
	if err != nil {
		return err
	}
	files, err := readFiles(dir)
	if err != nil {
		return err
	}
	manifest, err := s.dockerManifest(index)
	if err != nil {
		return err
	}
	return s.writeFiles(append(files, file{name: "manifest.json", mode: 0o644, content: manifest}))
}

// writeFiles writes the tar file, or nothing.
func (s settings) writeFiles(files []file) error {
	part, err := os.Create(s.output + ".part")
	if err != nil {
		return err
	}
	defer part.Close() // closed before, unless something failed
	if err := writeTar(part, files, s.created); err != nil {
		return err
	}
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), s.output)
}

// familiar is a tag's full name as container runtimes write it: those without a registry are in docker.io/library.
func familiar(tag name.Tag) string {
	if repository, ok := strings.CutPrefix(tag.Name(), name.DefaultRegistry+"/"); ok {
		return "docker.io/" + repository
	}
	return tag.Name()
}

func readFiles(dir string) (out []file, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		out = append(out, file{name: filepath.ToSlash(relative), mode: 0o644, content: content})
		return err
	})
	return out, err
}

// dockerImage is an entry of manifest.json in the format of docker save.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerManifest lists the images one by one, each with its architecture in the tag: the format knows no index.
func (s settings) dockerManifest(index v1.ImageIndex) ([]byte, error) {
	var out []dockerImage
	err := images(index, func(platform *v1.Platform, img v1.Image) error {
		manifest, err := img.Manifest()
		if err != nil {
			return err
		}
		d := dockerImage{
			Config:   blob(manifest.Config.Digest),
			RepoTags: []string{fmt.Sprintf("%s:%s-%s", s.tag.RepositoryStr(), s.tag.TagStr(), platform.Architecture)},
		}
		if r := s.tag.RegistryStr(); r != name.DefaultRegistry {
			d.RepoTags[0] = r + "/" + d.RepoTags[0]
		}
		for _, l := range manifest.Layers {
			d.Layers = append(d.Layers, blob(l.Digest))
		}
		out = append(out, d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// images calls f with every image of an index.
func images(index v1.ImageIndex, f func(*v1.Platform, v1.Image) error) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := f(d.Platform, img); err != nil {
			return err
		}
	}
	return nil
}

// describe prints what is in the tar file.
func (s settings) describe(index v1.ImageIndex) error {
	fmt.Printf("%s: %s\n", s.output, s.tag)
	return images(index, func(platform *v1.Platform, img v1.Image) error {
		size, err := img.Size()
		if err != nil {
			return err
		}
		manifest, err := img.Manifest()
		if err != nil {
			return err
		}
		size += manifest.Config.Size
		for _, l := range manifest.Layers {
			size += l.Size
		}
		digest, err := img.Digest()
		fmt.Printf("%s: %.1f MB, %s\n", platform, float64(size)/1e6, digest)
		return err
	})
}
