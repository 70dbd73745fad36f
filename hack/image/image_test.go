package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

const sum = "h1:NxB+05W2UGqXWFXcLO0RB5cnqnUPP5v5sVlaOH0Iz4w="

// example is a program with two modules of one license.
func example(arch string) *program {
	mit := text{name: "LICENSE", content: []byte("do as you like\n"), licenses: []string{"MIT"}}
	apache := text{name: "LICENSE", content: []byte("in the name of the feather\n"), licenses: []string{"Apache-2.0"}}
	notice := text{name: "NOTICE", content: []byte("thanks\n")}
	return &program{content: []byte("program for " + arch), arch: arch, goVersion: "go1.99.0", components: []component{
		{path: "example.com/main", version: "v1.2.3", texts: []text{apache}},
		{path: stdlib, version: "1.99.0", texts: []text{mit}},
		{path: "example.com/A/v2", version: "v2.0.0+incompatible", sum: sum, texts: []text{mit, notice}},
		{path: "example.com/b", version: "v0.1.0", sum: sum, texts: []text{mit}},
	}}
}

func exampleSettings(t *testing.T) settings {
	t.Helper()
	s, err := parse([]string{
		"-version=v1.2.3", "-revision=abc", "-epoch=1700000000", "-image=example.com/proxy:v1", "-output=" + filepath.Join(t.TempDir(), "x.tar"), "program",
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustIndex(t *testing.T, s settings, programs ...*program) v1.ImageIndex {
	t.Helper()
	index, err := s.index(programs)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestPush pushes to a registry and reads back what is there.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/team/proxy"
	index := mustIndex(t, exampleSettings(t), example("amd64"), example("arm64"))
	pushed, err := push(t.Context(), repository+":v1", index)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if want := repository + "@" + digest.String(); pushed.String() != want {
		t.Errorf("pushed %s, want %s", pushed, want)
	}
	tag, err := name.NewTag(repository + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []name.Reference{tag, pushed} {
		there, err := remote.Index(ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(there); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Architecture != arch {
			t.Errorf("image for %s: it is for %s (%v)", arch, config.Architecture, err)
		}
	}
}

func TestPushFails(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	server.Close()
	index := mustIndex(t, exampleSettings(t), example("amd64"))
	if _, err := push(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/proxy:v1", index); err == nil {
		t.Error("pushed to a registry that isn't there")
	}
	if _, err := push(t.Context(), "UPPER CASE", index); err == nil {
		t.Error("pushed to what is no name")
	}
}

func TestIndexRefuses(t *testing.T) {
	s := exampleSettings(t)
	if _, err := s.index([]*program{example("amd64"), example("amd64")}); err == nil {
		t.Error("two programs of one architecture are in one index")
	}
	other := example("arm64")
	other.goVersion = "go1.98.0"
	if _, err := s.index([]*program{example("amd64"), other}); err == nil {
		t.Error("programs of two Go versions are in one index")
	}
}

// TestPlaceholderIsNoImage reads the name in deploy/ that users replace. A kubelet parses the name of an image before it pulls the image.
func TestPlaceholderIsNoImage(t *testing.T) {
	for file, key := range map[string]string{"../../deploy/base/kustomization.yaml": "newName: ", "../../deploy/kubeadm/hardened.yaml": "image: "} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), key)
		placeholder, _, found := strings.Cut(after, "\n")
		if tag, err := name.NewTag(placeholder + ":dev"); !found || err == nil {
			t.Errorf("%s: the placeholder %q is the image %s", file, placeholder, tag)
		}
	}
}

// TestArchiveNames looks at the names by which the tar file is loaded.
func TestArchiveNames(t *testing.T) {
	for _, tc := range []struct{ image, containerd, docker string }{
		{"kube-nftproxy:v1", "docker.io/library/kube-nftproxy:v1", "library/kube-nftproxy:v1-arm64"},
		{"registry.example.com:5000/a/b:v1", "registry.example.com:5000/a/b:v1", "registry.example.com:5000/a/b:v1-arm64"},
	} {
		s := exampleSettings(t)
		var err error
		if s.tag, err = name.NewTag(tc.image); err != nil {
			t.Fatal(err)
		}
		if err := s.writeArchive(mustIndex(t, s, example("arm64"))); err != nil {
			t.Fatal(err)
		}
		files := mustReadTar(t, s.output)
		var index v1.IndexManifest
		if err := json.Unmarshal(files["index.json"], &index); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"io.containerd.image.name": tc.containerd, "org.opencontainers.image.ref.name": "v1"}
		if diff := cmp.Diff(want, index.Manifests[0].Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", tc.image, diff)
		}
		var docker []dockerImage
		if err := json.Unmarshal(files["manifest.json"], &docker); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{tc.docker}, docker[0].RepoTags); diff != "" {
			t.Errorf("%s: names for Docker (-want +got):\n%s", tc.image, diff)
		}
		for _, file := range append(docker[0].Layers, docker[0].Config) {
			if files[file] == nil {
				t.Errorf("%s: manifest.json names %s, which isn't there", tc.image, file)
			}
		}
	}
}

func mustReadTar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err == nil {
			out[h.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBOM(t *testing.T) {
	p := example("amd64")
	b, err := p.bom(time.Unix(1700000000, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	var got []string
	for _, pkg := range doc.Packages {
		checksum := ""
		for _, c := range pkg.PackageChecksums {
			checksum += string(c.Algorithm)
		}
		got = append(got, fmt.Sprintln(pkg.PackageSPDXIdentifier, pkg.PackageVersion, pkg.PackageLicenseConcluded, pkg.PackageExternalReferences[0].Locator, checksum))
	}
	want := []string{
		"Package-example.com-main v1.2.3 Apache-2.0 pkg:golang/example.com/main@v1.2.3 SHA256\n",
		"Package-stdlib 1.99.0 MIT pkg:golang/stdlib@1.99.0 \n",
		"Package-example.com-A-v2 v2.0.0+incompatible MIT pkg:golang/example.com/a/v2@v2.0.0%2Bincompatible SHA256\n",
		"Package-example.com-b v0.1.0 MIT pkg:golang/example.com/b@v0.1.0 SHA256\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	if v := doc.Packages[3].PackageChecksums[0].Value; v != "37107ed395b6506a975855dc2ced11079727aa750f3f9bf9b1595a387d08cf8c" {
		t.Errorf("checksum %s isn't that of %s", v, sum)
	}
	if len(doc.Relationships) != 4 || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("%d relationships, want 4; created %s", len(doc.Relationships), doc.CreationInfo.Created)
	}
	p.components[2].sum = "h2:abc"
	if _, err := p.bom(time.Time{}); err == nil {
		t.Error("a checksum of an unknown kind is taken")
	}
}

func TestNotices(t *testing.T) {
	line := strings.Repeat("=", 120)
	want := `example.com/main v1.2.3 for linux/amd64 contains:

example.com/main  v1.2.3               Apache-2.0
stdlib            1.99.0               MIT
example.com/A/v2  v2.0.0+incompatible  MIT
example.com/b     v0.1.0               MIT

` + line + `
example.com/main v1.2.3: LICENSE
` + line + `

in the name of the feather

` + line + `
stdlib 1.99.0: LICENSE
example.com/A/v2 v2.0.0+incompatible: LICENSE
example.com/b v0.1.0: LICENSE
` + line + `

do as you like

` + line + `
example.com/A/v2 v2.0.0+incompatible: NOTICE
` + line + `

thanks
`
	if diff := cmp.Diff(want, string(example("amd64").notices())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, args := range []string{
		"", "-version=v1 -output=x -image=a:b", "-version=v1 -image=a:b program", "-output=x -image=a:b program",
		"-version=v1 -output=x -image=A:b program", "-version=v1 -output=x -image=a:b -epoch=now program",
	} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("parse(%q) took it", args)
		}
	}
}
