package manifests

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// No content of a manifest causes a panic. Neither a second read of the file nor the same content in a file of another name changes
// the objects.
func FuzzManifests(f *testing.F) {
	for _, s := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\nspec: {clusterIPs: [10.0.0.1], ports: [{port: 80}]}\n---\nkind: Node\napiVersion: v1\nmetadata: {name: n}",
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, namespace: b, labels: {kubernetes.io/service-name: a}, " +
			"annotations: {endpoints.kubernetes.io/last-change-trigger-time: yesterday}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [10.0.0.2]}]",
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}}, null]}, {}]}`,
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.0.0.0/8]}\n---\n---\nnull", "apiVersion: v1\nkind: Pod", "- a", "{", "a: *b", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		first, second := newParser().parse("a.yaml", content), newParser().parse("a.yaml", content)
		if diff := cmp.Diff(first.problems, second.problems); diff != "" || len(first.objects) != len(second.objects) {
			t.Errorf("read twice, %d and %d objects:\n%s", len(first.objects), len(second.objects), diff)
		}
		dir := t.TempDir()
		tracker := track.New(time.Now(), time.Now)
		m := New(watch.Config{Folder: dir, NodeName: "n", Tracker: tracker})
		file := filepath.Join(dir, "a.yaml")
		lab.Must(t, os.WriteFile(file, content, 0o600))
		lab.Must(t, m.Load())
		before := contentsOf(m)
		tracker.Take()
		lab.Must(t, m.Load())
		if d := tracker.Take(); !d.Since.IsZero() {
			t.Errorf("a second read marked %+v", d)
		}
		lab.Must(t, os.Rename(file, filepath.Join(dir, "b.yaml")))
		lab.Must(t, m.Load())
		lab.Same(t, before, contentsOf(m), "under another name (-before +after)")
	})
}

// contentsOf returns all objects that a source returns to its readers.
func contentsOf(m *Source) (all []any) {
	all = append(all, m.Node(), m.ServiceCIDRs())
	for _, name := range m.Services() {
		all = append(all, m.Get(name).Service)
		for _, slice := range m.Get(name).Slices {
			all = append(all, slice.Object(name.Name))
		}
	}
	return all
}
