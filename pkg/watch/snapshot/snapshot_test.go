package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/framer"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	own = Identity{Cluster: "c", Node: "n", Stored: "s"}
)

func header() *Header {
	return &Header{Format: Format, Identity: own, Saved: now.Add(-time.Hour), Versions: map[string]string{"services": "7"}}
}

func object(name string) runtime.Object {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func encode(t testing.TB, h *Header, objects ...runtime.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	lab.Must(t, Encode(&out, h, slices.Values(objects)))
	return out.Bytes()
}

func decode(data []byte) (h *Header, objects []runtime.Object, err error) {
	h, err = Decode(bytes.NewReader(data), int64(len(data)), own, now, func(o runtime.Object) error {
		objects = append(objects, o)
		return nil
	})
	return h, objects, err
}

// framed returns a file with frames and the right checksum.
func framed(frames ...string) []byte {
	var out bytes.Buffer
	w := framer.NewLengthDelimitedFrameWriter(&out)
	for _, f := range frames {
		_, _ = w.Write([]byte(f)) // a buffer does not fail
	}
	return summed(out.Bytes())
}

func summed(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(slices.Clone(data), sum[:]...)
}

func TestFileHasAllObjects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "objects")
	for _, names := range [][]string{{"a", "b"}, {"c"}, nil} {
		var objects, got []runtime.Object
		for _, name := range names {
			objects = append(objects, object(name))
		}
		lab.Must(t, Write(path, header(), slices.Values(objects)))
		h, err := Read(path, own, now, func(o runtime.Object) error { got = append(got, o); return nil })
		lab.Must(t, err)
		lab.Same(t, header(), h, "header")
		for _, o := range got { // the encoding of a list has no kinds of its items
			o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		}
		lab.Same(t, objects, got, "objects")
	}
	info, err := os.Stat(path)
	lab.Must(t, err)
	lab.Same(t, fs.FileMode(0o600), info.Mode(), "mode of the file")
	info, err = os.Stat(filepath.Dir(path))
	lab.Must(t, err)
	lab.Same(t, fs.FileMode(0o700), info.Mode().Perm(), "mode of the folder")
	files, err := os.ReadDir(filepath.Dir(path))
	lab.Must(t, err)
	if len(files) != 1 {
		t.Errorf("the folder has %v, want only the snapshot", files)
	}
}

// TestDamagedContent: no object of a damaged or foreign file is used.
func TestDamagedContent(t *testing.T) {
	whole := encode(t, header(), object("a"), object("b"))
	changed := func(change func(*Header)) []byte {
		h := header()
		change(h)
		return encode(t, h, object("a"))
	}
	text := func(h *Header) string {
		data := encode(t, h)
		return string(data[4 : len(data)-sha256.Size])
	}
	valid := text(header())
	for name, data := range map[string][]byte{
		"empty":                      nil,
		"shorter than a checksum":    whole[:sha256.Size-1],
		"only a checksum":            summed(nil),
		"without its end":            whole[:len(whole)-1],
		"half":                       whole[:len(whole)/2],
		"more at the end":            append(slices.Clone(whole), 0),
		"zeros":                      make([]byte, len(whole)),
		"twice":                      slices.Concat(whole, whole),
		"text":                       []byte(strings.Repeat("not a snapshot\n", 100)),
		"another cluster":            changed(func(h *Header) { h.Cluster = "other" }),
		"another node":               changed(func(h *Header) { h.Node = "other" }),
		"other settings":             changed(func(h *Header) { h.Stored = "other" }),
		"a newer format":             changed(func(h *Header) { h.Format++ }),
		"an older format":            changed(func(h *Header) { h.Format-- }),
		"too old":                    changed(func(h *Header) { h.Saved = now.Add(-MaxAge - time.Second) }),
		"from the future":            changed(func(h *Header) { h.Saved = now.Add(MaxAge + time.Second) }),
		"without a time":             changed(func(h *Header) { h.Saved = time.Time{} }),
		"the header is no JSON":      framed("{"),
		"the header is a list":       framed("[]"),
		"the header is too large":    framed(valid + strings.Repeat(" ", largestObject)),
		"a frame without an end":     summed([]byte{0, 0, 1, 0, 'x'}),
		"a frame of 4 GB":            summed([]byte{0xff, 0xff, 0xff, 0xff, 'x'}),
		"a length without an end":    summed([]byte{0, 0}),
		"an object without a kind":   framed(valid, "k8s\x00"),
		"an object that is no kind":  framed(valid, "k8s\x00\x0a\x06\x0a\x02v1\x12\x00"),
		"an object in JSON":          framed(valid, `{"apiVersion":"v1","kind":"Service"}`),
		"an object of another group": framed(valid, "k8s\x00\x0a\x0f\x0a\x07apps/v1\x12\x04Dept\x12\x00"),
		"an object that is garbage":  framed(valid, "k8s\x00\x0a\x0d\x0a\x02v1\x12\x07Service\x12\x03\xff\xff\xff"),
		"an object that is too large": framed(valid,
			"k8s\x00\x0a\x0d\x0a\x02v1\x12\x07Service\x12\x03"+strings.Repeat("x", largestObject)),
	} {
		t.Run(name, func(t *testing.T) {
			h, objects, err := decode(data)
			if err == nil || h != nil || len(objects) > 0 {
				t.Errorf("header %v, %d objects, error %v; want only an error", h, len(objects), err)
			}
		})
	}
	t.Run("each bit", func(t *testing.T) {
		for i := range whole {
			flipped := slices.Clone(whole)
			flipped[i] ^= 1 << (i % 8)
			if _, objects, err := decode(flipped); err == nil || len(objects) > 0 {
				t.Errorf("byte %d: %d objects, error %v", i, len(objects), err)
			}
		}
	})
	t.Run("too large", func(t *testing.T) {
		_, err := Decode(bytes.NewReader(whole), largestFile+sha256.Size+1, own, now, nil)
		if err == nil || errors.Is(err, errBroken) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("an object that the caller refuses", func(t *testing.T) {
		refused := errors.New("refused")
		_, err := Decode(bytes.NewReader(whole), int64(len(whole)), own, now, func(runtime.Object) error { return refused })
		if !errors.Is(err, refused) {
			t.Errorf("error %v", err)
		}
	})
	if _, objects, err := decode(whole); err != nil || len(objects) != 2 {
		t.Errorf("the whole file: %d objects, %v", len(objects), err)
	}
}

// TestClock: after a boot, the clock of a node without a battery may be before the time of the snapshot.
func TestClock(t *testing.T) {
	h := header()
	h.Saved = now.Add(MaxAge - time.Minute)
	if _, objects, err := decode(encode(t, h, object("a"))); err != nil || len(objects) != 1 {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}

// TestForeignFiles: a file that another user could have written, or that is no regular file, is not read.
func TestForeignFiles(t *testing.T) {
	data := encode(t, header(), object("a"))
	write := func(path string) error { return os.WriteFile(path, data, 0o600) }
	for name, prepare := range map[string]func(path string) error{
		"no file":       func(string) error { return nil },
		"a folder":      func(path string) error { return os.Mkdir(path, 0o700) },
		"a named pipe":  func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a broken link": func(path string) error { return os.Symlink(path+".none", path) },
		"a link": func(path string) error {
			return errors.Join(write(path+".other"), os.Symlink(path+".other", path))
		},
		"readable by others": func(path string) error { return errors.Join(write(path), os.Chmod(path, 0o644)) },
		"writable by a group": func(path string) error {
			return errors.Join(write(path), os.Chmod(path, 0o620))
		},
		"a program of its owner": func(path string) error {
			return errors.Join(write(path), os.Chmod(path, 0o600|fs.ModeSetuid))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "objects")
			lab.Must(t, prepare(path))
			done := make(chan error, 1)
			go func() {
				_, err := Read(path, own, now, func(runtime.Object) error { return errors.New("an object was read") })
				done <- err
			}()
			select {
			case err := <-done:
				if err == nil || strings.Contains(err.Error(), "an object was read") {
					t.Errorf("error %v", err)
				}
				if errors.Is(err, fs.ErrNotExist) != (name == "no file") {
					t.Errorf("a missing file: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the read does not end")
			}
		})
	}
}

// TestFileOfAnotherUser: a file that belongs to another user is not used.
func TestFileOfAnotherUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects")
	lab.Must(t, os.WriteFile(path, nil, 0o600))
	info, err := os.Stat(path)
	lab.Must(t, err)
	if !isPrivate(info, os.Geteuid()) || isPrivate(info, os.Geteuid()+1) {
		t.Error("the owner is not the only user who may use the file")
	}
}

// TestFailedWrite: a write that fails leaves the previous snapshot, and no other file.
func TestFailedWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "objects")
	lab.Must(t, Write(path, header(), slices.Values([]runtime.Object{object("a")})))
	lab.Must(t, os.WriteFile(path+".next", []byte("left by a crash"), 0o600))
	unknown := &metav1.Status{}
	if err := Write(path, header(), slices.Values([]runtime.Object{object("b"), unknown})); err == nil {
		t.Error("an unknown kind was written")
	}
	var names []string
	_, err := Read(path, own, now, func(o runtime.Object) error {
		names = append(names, o.(*corev1.Service).Name)
		return nil
	})
	lab.Must(t, err)
	lab.Same(t, []string{"a"}, names, "objects after a failed write")
	files, err := os.ReadDir(dir)
	lab.Must(t, err)
	if len(files) != 1 {
		t.Errorf("the folder has %v", files)
	}
	lab.Must(t, os.Mkdir(path+".next", 0o700))
	lab.Must(t, os.WriteFile(filepath.Join(path+".next", "x"), nil, 0o600))
	if err := Write(path, header(), slices.Values([]runtime.Object(nil))); err == nil {
		t.Error("a folder in the place of the new file was replaced")
	}
}

// TestTooLargeToRead: a snapshot that no process could read is not written.
func TestTooLargeToRead(t *testing.T) {
	large := func(n int) runtime.Object {
		o := object("large").(*corev1.Service)
		o.Annotations = map[string]string{"a": strings.Repeat("x", n)}
		return o
	}
	many := func(yield func(runtime.Object) bool) {
		o := large(largestObject - 1<<10)
		for range largestFile/largestObject + 2 {
			if !yield(o) {
				return
			}
		}
	}
	for name, objects := range map[string]iter.Seq[runtime.Object]{
		"an object": slices.Values([]runtime.Object{large(largestObject)}), "all objects": many,
	} {
		if err := Encode(io.Discard, header(), objects); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, objects, err := decode(encode(t, header(), large(largestObject-1<<10)))
	if lab.Must(t, err); len(objects) != 1 {
		t.Errorf("%d objects", len(objects))
	}
}

func FuzzDecode(f *testing.F) {
	whole := encode(f, header(), object("a"))
	f.Add(whole[:len(whole)-sha256.Size])
	f.Add(framed("{}", "k8s\x00"))
	valid := encode(f, header())
	frame := string(valid[4 : len(valid)-sha256.Size])
	f.Add(framed(frame, "k8s\x00\x0a\x0d\x0a\x02v1\x12\x07Service\x12\x03\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, _, err := decode(summed(data)) // otherwise only the checksum would be tested
		if err == nil && (h.Format != Format || h.Identity != own) {
			t.Error(fmt.Sprint("used the header ", h))
		}
	})
}
