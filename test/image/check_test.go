//go:build e2e || twin

package image

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	programFile = "usr/local/bin/kube-nftproxy"
	documents   = "usr/share/doc/kube-nftproxy/"
)

// The most that an image may have, as it is in a registry and as the program is on a node: somewhat more than it has.
const (
	maxCompressed = 16 << 20
	maxProgram    = 48 << 20
)

// machines are the architectures as ELF calls them.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func checkReproducible(t *testing.T, first, second *made) {
	t.Helper()
	if first.digest != second.digest {
		t.Errorf("two builds of one source have digests %s and %s", first.digest, second.digest)
	}
	if !bytes.Equal(first.archive, second.archive) {
		t.Error("two builds of one source have different tar files")
	}
}

// checkImage checks everything that can be seen without running the program, for exactly the given architectures.
func checkImage(t *testing.T, m *made, architectures ...string) {
	t.Helper()
	var got []string
	for _, d := range m.index.Manifests {
		got = append(got, d.Platform["architecture"])
		if want := map[string]string{"os": "linux", "architecture": d.Platform["architecture"]}; !cmp.Equal(want, d.Platform) || d.ArtifactType != "" {
			t.Errorf("platform %v, artifact type %q, want %v and none", d.Platform, d.ArtifactType, want)
		}
	}
	if diff := cmp.Diff(architectures, got); diff != "" {
		t.Fatalf("architectures (-want +got):\n%s", diff)
	}
	for _, arch := range architectures {
		t.Run(arch, func(t *testing.T) {
			i := m.images[arch]
			program := i.file(t, programFile)
			t.Logf("%.1f MB compressed, the program %.1f MB", float64(i.layerSize)/1e6, float64(len(program))/1e6)
			if i.layerSize > maxCompressed || len(program) > maxProgram {
				t.Errorf("layer of %d bytes, program of %d: want at most %d and %d", i.layerSize, len(program), maxCompressed, maxProgram)
			}
			checkConfig(t, i, arch)
			checkEntries(t, i)
			checkStatic(t, program, arch)
			if bytes.Contains(program, []byte(m.dir)) || bytes.Contains(program, []byte(os.TempDir()+"/go-build")) {
				t.Error("the program contains the folder in which it was built")
			}
			info, err := buildinfo.Read(bytes.NewReader(program))
			lab.Must(t, err)
			checkBOM(t, i, info)
			checkNotices(t, i, info)
		})
	}
}

func checkConfig(t *testing.T, i *oneImage, arch string) {
	t.Helper()
	const oci = "org.opencontainers.image."
	labels := map[string]string{
		oci + "title": "kube-nftproxy", oci + "description": "Kubernetes Services on a node by native nftables, in the place of kube-proxy",
		oci + "licenses": "Apache-2.0 AND BSD-3-Clause AND CC0-1.0 AND ISC AND MIT", oci + "created": "2023-11-14T22:13:20Z",
		oci + "source":        "https://github.com/kube-nftproxy/kube-nftproxy",
		oci + "documentation": "https://github.com/kube-nftproxy/kube-nftproxy/tree/main/docs",
		oci + "version":       version, oci + "revision": revision, "io.github.kube-nftproxy.go-version": goVersion(t),
	}
	want := config{Architecture: arch, OS: "linux", Created: time.Unix(epoch, 0).UTC()}
	want.RootFS = i.config.RootFS
	want.Config.User, want.Config.WorkingDir, want.Config.Labels = "0:0", "/", labels
	want.Config.Env, want.Config.Entrypoint = []string{"PATH=/usr/local/bin"}, []string{"/usr/local/bin/kube-nftproxy"}
	lab.Same(t, want, i.config, "configuration")
	lab.Same(t, labels, i.manifest.Annotations, "annotations")
	if i.config.RootFS.Type != "layers" {
		t.Errorf("root file system of type %q, want layers", i.config.RootFS.Type)
	}
	types := []string{i.manifest.MediaType, i.manifest.Config.MediaType, i.manifest.Layers[0].MediaType}
	if diff := cmp.Diff([]string{
		"application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip",
	}, types); diff != "" {
		t.Errorf("media types (-want +got):\n%s", diff)
	}
}

func goVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOVERSION").Output()
	lab.Must(t, err)
	return strings.TrimSpace(string(out))
}

// checkEntries compares the list of everything in the image, with modes, owners and times.
func checkEntries(t *testing.T, i *oneImage) {
	t.Helper()
	var got []string
	for _, e := range i.entries {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d:%d %d %s %s", e.FileInfo().Mode(), e.Uid, e.Gid, e.ModTime.Unix(), e.Name, e.Linkname)))
		if e.Uname != "" || e.Gname != "" || len(e.PAXRecords) > 0 {
			t.Errorf("%s: belongs to %q:%q, has %v, want none", e.Name, e.Uname, e.Gname, e.PAXRecords)
		}
	}
	want := []string{
		"drwxr-xr-x 0:0 1700000000 usr/",
		"drwxr-xr-x 0:0 1700000000 usr/local/",
		"drwxr-xr-x 0:0 1700000000 usr/local/bin/",
		"-rwxr-xr-x 0:0 1700000000 usr/local/bin/kube-nftproxy",
		"Lrwxrwxrwx 0:0 1700000000 usr/local/bin/kube-proxy kube-nftproxy",
		"drwxr-xr-x 0:0 1700000000 usr/share/",
		"drwxr-xr-x 0:0 1700000000 usr/share/doc/",
		"drwxr-xr-x 0:0 1700000000 usr/share/doc/kube-nftproxy/",
		"-rw-r--r-- 0:0 1700000000 usr/share/doc/kube-nftproxy/LICENSE",
		"-rw-r--r-- 0:0 1700000000 usr/share/doc/kube-nftproxy/THIRD-PARTY-NOTICES",
		"-rw-r--r-- 0:0 1700000000 usr/share/doc/kube-nftproxy/sbom.spdx.json",
	}
	lab.Same(t, want, got, "files")
}

// checkStatic wants a program that needs no other file to run, and has no symbols.
func checkStatic(t *testing.T, program []byte, arch string) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	lab.Must(t, err)
	if f.Machine != machines[arch] || f.Type != elf.ET_EXEC {
		t.Errorf("the program is %s for %s, want %s for %s", f.Type, f.Machine, elf.ET_EXEC, machines[arch])
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %s: it isn't static", p.Type)
		}
	}
	for _, s := range f.Sections {
		if slices.Contains([]string{".symtab", ".dynamic", ".interp", ".debug_info", ".zdebug_info", ".note.gnu.build-id"}, s.Name) {
			t.Errorf("the program has a section %s", s.Name)
		}
	}
}

// spdx is the part of an SPDX 2.3 document that is looked at.
type spdx struct {
	SPDXVersion       string
	DocumentNamespace string
	CreationInfo      struct{ Created string }
	Packages          []struct {
		Name, SPDXID, VersionInfo, SourceInfo, LicenseConcluded string
		ExternalRefs                                            []struct{ ReferenceLocator string }
	}
	Relationships []struct{ SpdxElementID, RelationshipType, RelatedSpdxElement string }
}

// checkBOM wants every module that the program says it has, Go's library and the program itself, each with a license, and
// nothing else.
func checkBOM(t *testing.T, i *oneImage, info *debug.BuildInfo) {
	t.Helper()
	var doc spdx
	lab.Must(t, json.Unmarshal(i.file(t, documents+"sbom.spdx.json"), &doc))
	if doc.SPDXVersion != "SPDX-2.3" || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("SBOM of version %s and time %s", doc.SPDXVersion, doc.CreationInfo.Created)
	}
	goRelease := strings.TrimPrefix(info.GoVersion, "go")
	want := []string{
		info.Main.Path + " " + version + "  pkg:golang/" + info.Main.Path + "@" + version,
		"stdlib " + goRelease + "  pkg:golang/stdlib@" + goRelease,
	}
	if len(info.Deps) < 10 {
		t.Fatalf("the program says it has %d modules", len(info.Deps))
	}
	for _, m := range info.Deps {
		want = append(want, m.Path+" "+m.Version+" go.sum: "+m.Sum+" pkg:golang/"+strings.ToLower(m.Path)+"@"+m.Version)
	}
	var got []string
	ids := map[string]bool{}
	for _, p := range doc.Packages {
		got = append(got, p.Name+" "+p.VersionInfo+" "+p.SourceInfo+" "+p.ExternalRefs[0].ReferenceLocator)
		if p.LicenseConcluded == "" || ids[p.SPDXID] {
			t.Errorf("package %s: license %q, ID %s", p.Name, p.LicenseConcluded, p.SPDXID)
		}
		ids[p.SPDXID] = true
	}
	slices.Sort(want)
	slices.Sort(got)
	lab.Same(t, want, got, "SBOM and what the program says of itself")
	kinds := map[string]int{}
	for _, r := range doc.Relationships {
		kinds[r.RelationshipType]++
	}
	lab.Same(t, map[string]int{"DESCRIBES": 1, "DEPENDS_ON": len(info.Deps) + 1}, kinds, "relationships")
}

// checkNotices looks for the license of every module, as it is in Go's module cache.
func checkNotices(t *testing.T, i *oneImage, info *debug.BuildInfo) {
	t.Helper()
	notices := string(i.file(t, documents+"THIRD-PARTY-NOTICES"))
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}
	for _, m := range info.Deps {
		args = append(args, m.Path)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = repository
	out, err := cmd.Output()
	lab.Must(t, err)
	modules := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(modules) != len(info.Deps) {
		t.Fatalf("go list -m knows %d modules of %d", len(modules), len(info.Deps))
	}
	for _, line := range modules {
		name, dir, _ := strings.Cut(line, "\t")
		files, err := fs.Glob(os.DirFS(dir), "[Ll][Ii][Cc][Ee][Nn][Ss][Ee]*")
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no license file in %s (%v)", name, dir, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(filepath.Join(dir, file))
			lab.Must(t, err)
			if !strings.Contains(notices, "\n"+name+": "+file+"\n") || !strings.Contains(notices, strings.TrimRight(string(content), "\n")) {
				t.Errorf("%s: %s isn't among the notices", name, file)
			}
		}
	}
	if golang := "\nstdlib " + strings.TrimPrefix(info.GoVersion, "go") + ": LICENSE\n"; !strings.Contains(notices, golang) {
		t.Error("Go's own license isn't among the notices")
	}
}
