package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// writeExampleChart writes an archive with files, as "helm package" does.
func writeExampleChart(t *testing.T, files ...file) string {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	if err := writeTar(zip, files, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "chart.tgz")
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func chartSettings(t *testing.T, chart string) settings {
	t.Helper()
	s, err := parse([]string{"-chart=" + chart, "-epoch=1700000000", "-output=" + filepath.Join(t.TempDir(), "x.tar")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestChart reads the artifact of a chart, which has another chart in it.
func TestChart(t *testing.T) {
	name := writeExampleChart(t,
		file{name: "a/charts/Chart.yaml", mode: 0o644, content: []byte("name: b\nversion: 2.0.0\n")},
		file{name: "a/Chart.yaml", mode: 0o644, content: []byte("name: a\nversion: 1.0.0\ndescription: d\nkubeVersion: \">=1.33.0-0\"\n")},
	)
	archive, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := chartSettings(t, name)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := mustReadTar(t, s.output)
	var index v1.IndexManifest
	var manifest v1.Manifest
	mustDecode(t, files["index.json"], &index)
	mustDecode(t, files[blob(index.Manifests[0].Digest)], &manifest)
	if got := index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "1.0.0" {
		t.Errorf("tag %q, want 1.0.0", got)
	}
	if !bytes.Equal(files[blob(manifest.Layers[0].Digest)], archive) {
		t.Error("the layer is not the archive")
	}
	var metadata map[string]string
	mustDecode(t, files[blob(manifest.Config.Digest)], &metadata)
	if diff := cmp.Diff(map[string]string{"name": "a", "version": "1.0.0", "description": "d", "kubeVersion": ">=1.33.0-0"}, metadata); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"org.opencontainers.image.title": "a", "org.opencontainers.image.version": "1.0.0", "org.opencontainers.image.description": "d",
		"org.opencontainers.image.created": "2023-11-14T22:13:20Z",
	}, manifest.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func mustDecode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v in %q", err, content)
	}
}

func TestChartRefuses(t *testing.T) {
	for name, files := range map[string][]file{
		"no Chart.yaml": {{name: "a/values.yaml", mode: 0o644}},
		"only below":    {{name: "a/charts/b/Chart.yaml", mode: 0o644, content: []byte("name: b\nversion: 2.0.0\n")}},
		"no version":    {{name: "a/Chart.yaml", mode: 0o644, content: []byte("name: a\n")}},
		"no YAML":       {{name: "a/Chart.yaml", mode: 0o644, content: []byte("\t{")}},
	} {
		t.Run(name, func(t *testing.T) {
			s := chartSettings(t, writeExampleChart(t, files...))
			if err := s.run(t.Context()); err == nil {
				t.Error("the chart is accepted")
			}
			if _, err := os.Stat(s.output); err == nil {
				t.Error("there is an output")
			}
		})
	}
}
