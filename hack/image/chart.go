package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of Helm.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chart is a packaged Helm chart.
type chart struct {
	Name, Version, Description string
	archive, metadata          []byte
}

// readChart reads an archive of "helm package". The metadata is Chart.yaml as JSON.
func readChart(file string) (c chart, err error) {
	if c.archive, err = os.ReadFile(file); err != nil {
		return c, err
	}
	unzip, err := gzip.NewReader(bytes.NewReader(c.archive))
	if err != nil {
		return c, err
	}
	for files := tar.NewReader(unzip); ; {
		h, err := files.Next()
		if err != nil {
			return c, fmt.Errorf("find Chart.yaml: %w", err)
		}
		if folder, name := path.Split(path.Clean(h.Name)); name != "Chart.yaml" || path.Dir(path.Clean(folder)) != "." {
			continue // also Chart.yaml of a chart in the chart
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return c, err
		}
		if c.metadata, err = yaml.YAMLToJSON(text); err != nil {
			return c, err
		}
		if err := json.Unmarshal(c.metadata, &c); err != nil {
			return c, err
		}
		if c.Name == "" || c.Version == "" {
			return c, errors.New("the file Chart.yaml has no name or no version")
		}
		return c, nil
	}
}

// writeChart writes an OCI layout as a tar file, with the artifact that "helm push" would make of a chart.
func (s settings) writeChart() error {
	c, err := readChart(s.chart)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.chart, err)
	}
	blobs := layoutBlobs{}
	manifest, err := blobs.addJSON(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: blobs.add(chartConfig, c.metadata),
		Layers: []v1.Descriptor{blobs.add(chartContent, c.archive)},
		Annotations: map[string]string{
			"org.opencontainers.image.title": c.Name, "org.opencontainers.image.version": c.Version,
			"org.opencontainers.image.description": c.Description, "org.opencontainers.image.created": s.created.Format(time.RFC3339),
		},
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": c.Version}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest}})
	if err != nil {
		return err
	}
	files := []file{
		{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, content: index},
	}
	for name, content := range blobs {
		files = append(files, file{name: name, mode: 0o644, content: content})
	}
	fmt.Printf("%s: %s %s\n", s.output, c.Name, c.Version)
	return s.writeFiles(files)
}

// layoutBlobs are the blobs of an OCI layout, by file name.
type layoutBlobs map[string][]byte

func (b layoutBlobs) add(kind types.MediaType, content []byte) v1.Descriptor {
	digest := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(content))}
	b[blob(digest)] = content
	return v1.Descriptor{MediaType: kind, Digest: digest, Size: int64(len(content))}
}

func (b layoutBlobs) addJSON(kind types.MediaType, value any) (v1.Descriptor, error) {
	content, err := json.Marshal(value)
	return b.add(kind, content), err
}
