package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	web = types.NamespacedName{Namespace: "shop", Name: "web"}
	db  = types.NamespacedName{Namespace: "shop", Name: "db"}
)

func names(list ...types.NamespacedName) map[types.NamespacedName]struct{} {
	set := map[types.NamespacedName]struct{}{}
	for _, name := range list {
		set[name] = struct{}{}
	}
	return set
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	const patient = 30 * time.Second
	select {
	case <-done:
	case <-time.After(patient):
		t.Fatalf("no %s after %v", what, patient)
	}
}

// folder is a folder of manifests, the source that reads it, and the problems that the source reported.
type folder struct {
	t       *testing.T
	path    string
	source  *Source
	tracker *track.Tracker

	mu       sync.Mutex
	problems []model.Problem
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{t: t, path: t.TempDir(), tracker: track.New(time.Now(), time.Now)}
	f.source = New(watch.Config{Folder: f.path, NodeName: "node-1", Tracker: f.tracker, Report: func(p model.Problem) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.problems = append(f.problems, p)
	}})
	return f
}

func (f *folder) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.path, name), []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.path, name)); err != nil {
		f.t.Fatal(err)
	}
}

// load reads the folder and returns the marks.
func (f *folder) load() track.Dirty {
	f.t.Helper()
	if err := f.source.Load(); err != nil {
		f.t.Fatal(err)
	}
	dirty := f.tracker.Take()
	dirty.Since = time.Time{}
	return dirty
}

// reported returns kind, name and reason of new problems, without the folder's path.
func (f *folder) reported() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, p := range f.problems {
		lines = append(lines, strings.ReplaceAll(fmt.Sprintf("%s %s %s", p.Kind, p.Name.Name, p.Reason), f.path+"/", ""))
	}
	f.problems = nil
	return lines
}

func serviceYAML(name, ip string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: %s, ports: [{port: 80}]}
`, name, ip)
}

const everything = `# a comment, and an empty document
---
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 172.30.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: node-1}
- apiVersion: networking.k8s.io/v1
  kind: ServiceCIDR
  metadata: {name: kubernetes}
  spec: {cidrs: [172.30.0.0/16]}
---
apiVersion: v1
kind: ServiceList
items:
- metadata: {name: db, namespace: shop}
  spec: {clusterIP: 172.30.0.2, ports: [{port: 5432}]}
`

func TestManifestsRead(t *testing.T) {
	f := newFolder(t)
	f.write("all.yaml", everything)
	f.write("one.json", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}, "spec": {"clusterIP": "fd00::1"}}`)
	f.write(".hidden.yaml", "not: [read")
	f.write("notes.txt", "not: [read")
	lab.Must(t, os.Mkdir(filepath.Join(f.path, "folder.yaml"), 0o700))
	json := types.NamespacedName{Namespace: "default", Name: "json"}
	want := track.Dirty{Services: names(web, db, json), Node: true, ServiceCIDRs: true, ServiceChanges: 3, SliceChanges: 1}
	lab.Same(t, want, f.load(), "marks")
	lab.Same(t, []types.NamespacedName{json, db, web}, f.source.Services(), "Services")
	if got := f.source.Get(web).Service; got == nil || got.Spec.IPFamilies[0] != "IPv4" {
		t.Errorf("Service(shop/web) = %v, want it with families", got)
	}
	if got := f.source.Get(web).Slices; len(got) != 1 || *got[0].Ports[0].Protocol != "TCP" {
		t.Errorf("Slices(shop/web) = %v, want one whose port is TCP", got)
	}
	if f.source.Node() == nil || len(f.source.ServiceCIDRs()) != 1 {
		t.Errorf("Node() = %v, ServiceCIDRs() = %v, want both", f.source.Node(), f.source.ServiceCIDRs())
	}
	lab.Same(t, []string(nil), f.reported(), "problems")
	await(t, "sync", f.source.Loaded())
}

func TestManifestsWithoutAFolder(t *testing.T) {
	f := newFolder(t)
	f.source.LoadFrom("standard input", []byte(everything+"---\nkind: [broken\n"))
	if got := f.reported(); len(got) != 1 || !strings.Contains(got[0], "standard input") {
		t.Errorf("problems: %q, want one with its source", got)
	}
	f = newFolder(t)
	f.source.LoadFrom("standard input", []byte(everything))
	lab.Same(t, []types.NamespacedName{db, web}, f.source.Services(), "Services")
	f.source.LoadFrom("standard input", nil)
	if got := f.source.Services(); len(got) != 0 {
		t.Errorf("Services: %v, want none: the last content has no objects", got)
	}
}

func TestManifestsMarkOnlyChanges(t *testing.T) {
	f := newFolder(t)
	both := serviceYAML("web", "172.30.0.1") + "---\n" + serviceYAML("db", "172.30.0.2")
	f.write("a.yaml", both)
	f.load()

	for _, step := range []struct {
		name   string
		change func()
		want   track.Dirty
	}{
		{"nothing", func() {}, track.Dirty{}},
		{"a comment", func() { f.write("a.yaml", "# hello\n"+both) }, track.Dirty{}},
		{"a file's name", func() { f.write("b.yaml", both); f.remove("a.yaml") }, track.Dirty{}},
		{
			"one of two",
			func() { f.write("b.yaml", strings.Replace(both, "172.30.0.2", "172.30.0.3", 1)) },
			track.Dirty{Services: names(db), ServiceChanges: 1},
		},
		{
			"one is removed",
			func() { f.write("b.yaml", serviceYAML("web", "172.30.0.1")) },
			track.Dirty{Services: names(db), ServiceChanges: 1},
		},
		{
			"the file is removed",
			func() { f.remove("b.yaml") },
			track.Dirty{Services: names(web), ServiceChanges: 1},
		},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.change()
			lab.Same(t, step.want, f.load(), "marks")
		})
	}
	if got := f.source.Services(); len(got) != 0 {
		t.Errorf("Services() = %v after their file was removed, want none", got)
	}
}

func TestManifestsBrokenFile(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("web", "172.30.0.1"))
	f.load()

	for _, broken := range []string{
		"kind: [Service", "kind: Service\n", strings.Replace(serviceYAML("web", "172.30.0.9"), "80", "eighty", 1),
	} {
		f.write("a.yaml", broken)
		if got := f.load(); !got.Since.IsZero() {
			t.Errorf("reading %q marked %+v, want nothing", broken, got)
		}
		if got := f.source.Get(web).Service; got == nil || got.Spec.ClusterIP != "172.30.0.1" {
			t.Errorf("with %q Service() = %v, want the last good one", broken, got)
		}
		if got := f.reported(); len(got) != 1 || !strings.HasPrefix(got[0], "File a.yaml document 1, line 1: cannot be read") {
			t.Errorf("with %q reported %q, want one problem of the file", broken, got)
		}
		if f.load(); len(f.reported()) != 0 {
			t.Errorf("%q was reported again", broken)
		}
	}

	f.write("a.yaml", "kind: [Service ")
	f.load()
	if got := f.reported(); len(got) != 1 {
		t.Errorf("another broken content was reported as %q, want one problem", got)
	}
	f.write("a.yaml", serviceYAML("web", "172.30.0.9"))
	lab.Same(t, track.Dirty{Services: names(web), ServiceChanges: 1}, f.load(), "marks of the fixed file")
}

func TestManifestsProblems(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  []string
		known []types.NamespacedName
	}{
		{
			name: "unknown kinds",
			files: map[string]string{"a.yaml": "apiVersion: example.com/v1\nkind: Widget\n---\n" +
				"apiVersion: v1\nkind: Secret\nmetadata: {name: p}\n---\n" + serviceYAML("web", "172.30.0.1")},
			want: []string{
				"File a.yaml document 1, line 1: " + unused("example.com/v1, Kind=Widget"),
				"File a.yaml document 2, line 4: " + unused("/v1, Kind=Secret"),
			},
			known: []types.NamespacedName{web},
		},
		{
			name: "the first file wins",
			files: map[string]string{
				"b.yaml": serviceYAML("web", "172.30.0.2"), "a.yaml": serviceYAML("web", "172.30.0.1"),
			},
			want:  []string{"Service web is in a.yaml and again in b.yaml: the second one is not used; remove one of them"},
			known: []types.NamespacedName{web},
		},
		{
			name:  "misspelt field",
			files: map[string]string{"a.yaml": strings.Replace(serviceYAML("web", "172.30.0.1"), "ports", "prots", 1)},
			want:  []string{`File a.yaml document 1, line 1: strict decoding error: unknown field "spec.prots"`},
			known: []types.NamespacedName{web},
		},
		{
			name:  "no name",
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Service\n"},
			want:  []string{"File a.yaml document 1, line 1: is missing in an object of kind /v1, Kind=Service"},
		},
		{
			name: "slice without a service",
			files: map[string]string{
				"a.yaml": "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\naddressType: IPv4\n",
			},
			want: []string{"EndpointSlice s is missing: set it to the name of the Service of these endpoints"},
		},
		{
			name:  "broken from the start",
			files: map[string]string{"a.yaml": "[", "b.yaml": serviceYAML("web", "172.30.0.1")},
			want:  []string{"File a.yaml document 1, line 1: cannot be read and is left out: "},
			known: []types.NamespacedName{web},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFolder(t)
			for name, content := range tc.files {
				f.write(name, content)
			}
			f.load()
			startsAlike := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
			if diff := cmp.Diff(tc.want, f.reported(), startsAlike); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.known, f.source.Services(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
			if f.load(); len(f.reported()) != 0 {
				t.Error("the same problems were reported again")
			}
		})
	}
}

// TestManifestsOutOfFileDescriptors: a lack of file descriptors is not reported as a problem of a file. At the start, Load fails.
// Later, the source keeps all objects.
func TestManifestsOutOfFileDescriptors(t *testing.T) {
	f := newFolder(t)
	f.write("web.yaml", serviceYAML("web", "10.96.0.10"))
	none := func(path string) ([]byte, error) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
	}
	f.source.read = none
	if err := f.source.Load(); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("the first load without file descriptors: %v, want %v", err, syscall.EMFILE)
	}
	select {
	case <-f.source.Loaded():
		t.Error("a folder whose files could not be read counts as read")
	default:
	}
	f.source.read = newReader().read
	f.load()
	f.source.read = none
	if err := f.source.Load(); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("a later load without file descriptors: %v, want %v", err, syscall.EMFILE)
	}
	if dirty := f.tracker.Take(); len(dirty.Services) != 0 {
		t.Errorf("a load without file descriptors changed %v", dirty.Services)
	}
	if lines := f.reported(); lines != nil {
		t.Errorf("reported as problems of files: %q", lines)
	}
}

func TestManifestsNeedAFolder(t *testing.T) {
	m := New(watch.Config{Folder: filepath.Join(t.TempDir(), "absent"), Tracker: track.New(time.Now(), time.Now)})
	for name, err := range map[string]error{"Load": m.Load(), "Run": m.Run(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "it must exist and be readable") {
			t.Errorf("%s = %v, want an error with a fix", name, err)
		}
	}
}

// The source notices every kind of change of a file.
func TestManifestsFollow(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*folder)
		change  func(*testing.T, *folder)
	}{
		{
			name:    "new file",
			prepare: func(*folder) {},
			change:  func(_ *testing.T, f *folder) { f.write("a.yaml", serviceYAML("web", "172.30.0.9")) },
		},
		{
			name:    "written in place",
			prepare: func(f *folder) { f.write("a.yaml", serviceYAML("web", "172.30.0.1")) },
			change:  func(_ *testing.T, f *folder) { f.write("a.yaml", serviceYAML("web", "172.30.0.9")) },
		},
		{
			name:    "renamed over, as editors do",
			prepare: func(f *folder) { f.write("a.yaml", serviceYAML("web", "172.30.0.1")) },
			change: func(t *testing.T, f *folder) {
				f.write(".a.yaml.swp", serviceYAML("web", "172.30.0.9"))
				mustRename(t, filepath.Join(f.path, ".a.yaml.swp"), filepath.Join(f.path, "a.yaml"))
			},
		},
		{
			name: "..data swapped, as the kubelet does with a ConfigMap",
			prepare: func(f *folder) {
				configMapVersion(f, "..1", serviceYAML("web", "172.30.0.1"))
				mustLink(f.t, "..1", filepath.Join(f.path, "..data"))
				mustLink(f.t, "..data/a.yaml", filepath.Join(f.path, "a.yaml"))
			},
			change: func(t *testing.T, f *folder) {
				configMapVersion(f, "..2", serviceYAML("web", "172.30.0.9"))
				mustLink(t, "..2", filepath.Join(f.path, "..data_tmp"))
				mustRename(t, filepath.Join(f.path, "..data_tmp"), filepath.Join(f.path, "..data"))
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFolder(t)
			tc.prepare(f)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- f.source.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
			})
			await(t, "sync", f.source.Loaded())
			f.tracker.Take()
			tc.change(t, f)
			for {
				if s := f.source.Get(web).Service; s != nil && s.Spec.ClusterIP == "172.30.0.9" {
					break
				}
				await(t, "mark after the change", f.tracker.Ready())
			}
			if got := f.reported(); len(got) != 0 {
				t.Errorf("problems: %q", got)
			}
		})
	}
}

func configMapVersion(f *folder, version, content string) {
	f.t.Helper()
	if err := os.Mkdir(filepath.Join(f.path, version), 0o700); err != nil {
		f.t.Fatal(err)
	}
	f.write(version+"/a.yaml", content)
}

func mustLink(t *testing.T, target, link string) {
	t.Helper()
	lab.Must(t, os.Symlink(target, link))
}

func mustRename(t *testing.T, from, to string) {
	t.Helper()
	lab.Must(t, os.Rename(from, to))
}
