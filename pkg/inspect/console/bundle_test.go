package console

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestRecentProblems(t *testing.T) {
	var r Problems
	for i := range 250 {
		r.Note(model.Problem{Field: strings.Repeat("x", i)})
	}
	list := r.all()
	if len(list) != 200 || len(list[0].Problem.Field) != 50 || list[0].Time.IsZero() {
		t.Errorf("%d problems are kept, the first with length %d; want the last 200, the first with length 50", len(list), len(list[0].Problem.Field))
	}
}

// TestArchiveNamesMissingParts: a part that fails does not affect the other parts.
func TestArchiveNamesMissingParts(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	a := &archive{gzip: z, tar: tar.NewWriter(z)}
	a.addValue("status", nil, nil, errors.New("too busy"))
	a.add("versions.txt", []byte("v1"), nil)
	lab.Must(t, a.close())
	unzipped, err := gzip.NewReader(&b)
	lab.Must(t, err)
	got := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		content, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		got[h.Name] = string(content)
	}
	want := map[string]string{"kube-nftproxy/status.json": "\nnot available: too busy\n", "kube-nftproxy/versions.txt": "v1"}
	lab.Same(t, want, got, "")
}

// TestLogEnd: the archive has the end of a log that is a file, and nothing of a pipe.
func TestLogEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	lab.Must(t, os.WriteFile(file, []byte(strings.Repeat("x", mostText)+"end"), 0o600))
	if b, err := logEnd(file); err != nil || len(b) != mostText || !strings.HasSuffix(string(b), "xend") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if b, err := logEnd("/dev/null"); err != nil || len(b) > 0 {
		t.Errorf("of a device: %q, %v", b, err)
	}
	if b := limited(make([]byte, 2*mostText)); len(b) > mostText+8 {
		t.Errorf("%d bytes", len(b))
	}
}
