package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// manifests are what the demo serves, and what it changes.
//
//go:embed manifests
var manifests embed.FS

// withoutPod1 is the change that the demo makes.
const withoutPod1 = "changes/3-web-endpoints.yaml"

// source is where the daemon reads from.
type source interface {
	// flags tell the daemon where.
	flags() []string
	// apply brings in manifests, and returns the time at which the first object had been written.
	apply(ctx context.Context, names ...string) (time.Time, error)
	close()
}

// initial lists the manifests to begin with.
func initial() ([]string, error) {
	entries, err := manifests.ReadDir("manifests")
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func manifest(name string) ([]byte, error) { return manifests.ReadFile(path.Join("manifests", name)) }

// folder is a source without an API server: a folder of files.
type folder struct {
	dir string
	// variable stands for the folder in the output.
	variable string
	out      *printer
}

func newFolder(scratch, variable string, out *printer) (*folder, error) {
	f := &folder{dir: filepath.Join(scratch, strings.ToLower(variable)), variable: variable, out: out}
	return f, os.Mkdir(f.dir, 0o700)
}

func (f *folder) flags() []string { return []string{"--manifests", f.dir} }

func (f *folder) apply(_ context.Context, names ...string) (first time.Time, err error) {
	if len(names) == 1 {
		f.out.command("cp test/demo/manifests/" + names[0] + " $" + f.variable)
	}
	for _, name := range names {
		if err := f.write(name); err != nil {
			return first, fmt.Errorf("write manifest: %w", err)
		}
		if first.IsZero() {
			first = time.Now()
		}
	}
	return first, nil
}

// write replaces the file in one step, so that the daemon never reads half of it.
func (f *folder) write(name string) error {
	content, err := manifest(name)
	if err != nil {
		return err
	}
	hidden := filepath.Join(f.dir, ".new")
	if err := os.WriteFile(hidden, content, 0o600); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(f.dir, path.Base(name)))
}

func (f *folder) close() {}

// api is a source with a real API server, inside of the node.
type api struct {
	cluster    *cluster.Cluster
	kubeconfig string
	out        *printer
	known      map[string]bool
}

func newAPI(ctx context.Context, scratch, programs string, node *lab.Host, out *printer) (*api, error) {
	if node.Netns == "" {
		return nil, errors.New("the API server needs a namespace with a name, and so a writable /run/netns")
	}
	out.line("")
	out.note("etcd and kube-apiserver start inside of the node's namespace:")
	log := &indenter{out: out}
	c, err := cluster.Start(ctx, cluster.Config{
		Dir: filepath.Join(scratch, "cluster"), BinDir: programs, Netns: node.Netns, Log: log,
	})
	if err != nil {
		return nil, err
	}
	a := &api{cluster: c, kubeconfig: filepath.Join(scratch, "kubeconfig"), out: out, known: map[string]bool{}}
	if err := c.Kubeconfig(a.kubeconfig, false); err != nil {
		c.Stop()
		return nil, err
	}
	return a, nil
}

// flags name the user system:kube-proxy, who has no more rights than kube-proxy.
func (a *api) flags() []string { return []string{"--kubeconfig", a.kubeconfig} }

func (a *api) apply(ctx context.Context, names ...string) (first time.Time, err error) {
	var objects []runtime.Object
	for _, name := range names {
		some, err := parse(name)
		if err != nil {
			return first, err
		}
		objects = append(objects, some...)
	}
	if len(names) > 1 {
		names = []string{""}
	}
	a.out.command("kubectl apply -f test/demo/manifests/" + names[0])
	for _, o := range objects {
		if err := a.cluster.Apply(ctx, o); err != nil {
			return first, err
		}
		if first.IsZero() {
			first = time.Now()
		}
		a.tell(o)
	}
	return first, nil
}

// tell says what kubectl would.
func (a *api) tell(o runtime.Object) {
	kind := o.GetObjectKind().GroupVersionKind().GroupKind()
	name := strings.ToLower(kind.String()) + "/" + o.(metav1.Object).GetName()
	did := "created"
	if a.known[name] {
		did = "configured"
	}
	a.known[name] = true
	a.out.note(name + " " + did)
}

func (a *api) close() { a.cluster.Stop() }

// parse reads the objects of a manifest.
func parse(name string) (objects []runtime.Object, err error) {
	content, err := manifest(name)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var document runtime.RawExtension
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document.Raw, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		objects = append(objects, object)
	}
}

// indenter prints what is written to it as notes.
type indenter struct{ out *printer }

func (i *indenter) Write(text []byte) (int, error) {
	i.out.note("  " + strings.TrimSpace(string(text)))
	return len(text), nil
}
