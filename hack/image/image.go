package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Where files are in the image.
const (
	programFile = "usr/local/bin/kube-nftproxy"
	documents   = "usr/share/doc/kube-nftproxy/"
)

// files is everything in the image of one architecture. There is no CA bundle: the API server is believed by the CA that
// the ServiceAccount or the kubeconfig file brings along. There is no user database either, since nobody is looked up.
func (s settings) files(p *program) ([]file, error) {
	bom, err := p.bom(s.created)
	if err != nil {
		return nil, fmt.Errorf("make SBOM: %w", err)
	}
	out := []file{
		{name: programFile, mode: 0o755, content: p.content},
		// By this path kubeadm's DaemonSet calls it.
		{name: "usr/local/bin/kube-proxy", mode: 0o777, link: "kube-nftproxy"},
		{name: documents + "THIRD-PARTY-NOTICES", mode: 0o644, content: p.notices()},
		{name: documents + "sbom.spdx.json", mode: 0o644, content: bom},
	}
	for _, t := range p.components[0].texts {
		out = append(out, file{name: documents + t.name, mode: 0o644, content: t.content})
	}
	return out, nil
}

// labels describe an image, as labels of its configuration and as annotations.
func (s settings) labels(programs ...*program) map[string]string {
	var all []text
	for _, p := range programs {
		for _, c := range p.components {
			all = append(all, c.texts...)
		}
	}
	const oci = "org.opencontainers.image."
	out := map[string]string{
		oci + "title":         "kube-nftproxy",
		oci + "description":   "Kubernetes Services on a node by native nftables, in the place of kube-proxy",
		oci + "licenses":      expression(licenses(all)),
		oci + "source":        source,
		oci + "documentation": source + "/tree/main/docs",
		oci + "version":       s.version,
		oci + "created":       s.created.Format(time.RFC3339),
		// Another toolchain makes another program of the same source.
		"io.github.kube-nftproxy.go-version": programs[0].goVersion,
	}
	if s.revision != "" {
		out[oci+"revision"] = s.revision
	}
	return out
}

// image makes the image of one architecture.
func (s settings) image(p *program) (v1.Image, error) {
	files, err := s.files(p)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	if err := writeTar(&content, files, s.created); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	labels := s.labels(p)
	configured, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: p.arch, Created: v1.Time{Time: s.created}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			// Root, as kube-proxy: the program needs NET_ADMIN, which Kubernetes can't give to another user
			// (there are no ambient capabilities). The DaemonSet takes every other capability from it.
			User:       "0:0",
			Env:        []string{"PATH=/usr/local/bin"},
			Entrypoint: []string{"/" + programFile},
			WorkingDir: "/",
			Labels:     labels,
		},
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(configured, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: s.created}, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, labels).(v1.Image), nil
}

// plainImage is an image whose descriptor in the index doesn't call it an artifact, since it is none.
type plainImage struct{ v1.Image }

// ArtifactType is what the library asks for.
func (plainImage) ArtifactType() (string, error) { return "", nil }

// index makes an image of every program, and the index of them.
func (s settings) index(programs []*program) (v1.ImageIndex, error) {
	var adds []mutate.IndexAddendum
	seen := map[string]bool{}
	for _, p := range programs {
		if seen[p.arch] || p.goVersion != programs[0].goVersion {
			return nil, fmt.Errorf("add linux/%s: another program has the same architecture, or another Go version", p.arch)
		}
		seen[p.arch] = true
		img, err := s.image(p)
		if err != nil {
			return nil, fmt.Errorf("add linux/%s: %w", p.arch, err)
		}
		adds = append(adds, mutate.IndexAddendum{
			Add: plainImage{img}, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}},
		})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), adds...)
	return mutate.Annotations(index, maps.Clone(s.labels(programs...))).(v1.ImageIndex), nil
}
