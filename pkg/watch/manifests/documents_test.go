package manifests

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// between puts a text between two valid documents.
func between(text string) string {
	return serviceYAML("web", "172.30.0.1") + "---\n" + text + "\n---\n" + serviceYAML("db", "172.30.0.2")
}

// TestUnreadableDocumentsAreLeftOut: an unreadable document is reported once. All other documents, in the same file and in
// other files, are served.
func TestUnreadableDocumentsAreLeftOut(t *testing.T) {
	x := serviceYAML("x", "172.30.0.3")
	other := types.NamespacedName{Namespace: "shop", Name: "x"}
	service := func(name string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q, "namespace": "shop"}}`, name)
	}
	for _, tc := range []struct {
		name, file string
		reports    int
		also       []types.NamespacedName
	}{
		{"syntax", between("kind: [Service"), 1, nil},
		{"an open quote", between(`kind: "Service`), 1, nil},
		{"a tab", between("kind: Service\n\tapiVersion: v1"), 1, nil},
		{"indentation", between("apiVersion: v1\n  kind: Service\n metadata: {name: x}"), 1, nil},
		{"a field of a wrong type", between(strings.Replace(x, "80", "eighty", 1)), 1, nil},
		{"no object", between("- apiVersion: v1"), 1, nil},
		{"a word", between("Service"), 1, nil},
		{"no kind", between("apiVersion: v1"), 1, nil},
		{"a kind that is no word", between("apiVersion: v1\nkind: {}"), 1, nil},
		{"a kind that is not known", between("apiVersion: v1\nkind: Servic"), 1, nil},
		{"a kind that is not used", between("apiVersion: v1\nkind: Pod"), 1, nil},
		{"a List of a kind that is not used", between("apiVersion: v1\nkind: PodList\nitems: [{}, {}, {}]"), 1, nil},
		{"a field twice", between("apiVersion: v1\nkind: Service\nmetadata: {name: x}\nmetadata: {name: y}"), 1, nil},
		{"an unknown alias", between("apiVersion: *v\nkind: Service"), 1, nil},
		{"bytes that are no text", between("kind: \xff\xfe\x00"), 1, nil},
		{"an indented separator", between(x + "  ---\n" + serviceYAML("z", "172.30.0.4")), 1,
			[]types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"a separator of two dashes", between(x + "--\n" + serviceYAML("z", "172.30.0.4")), 1, []types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"no separator", between(x + serviceYAML("z", "172.30.0.4")), 1, []types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"no separator before an unreadable document", between(x + strings.Replace(serviceYAML("z", "172.30.0.4"), "80", "eighty", 1)), 2, []types.NamespacedName{other}},
		{"a separator with a comment and blanks", between(x + "--- # y\r\n" + serviceYAML("z", "172.30.0.4") + "...\n"), 0,
			[]types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"a separator in a text", between(strings.Replace(x, "{name: x, namespace: shop}", "{name: x, namespace: shop, annotations: {a: \"\n  ---\n  kind\"}}", 1)), 0,
			[]types.NamespacedName{other}},
		{"a directive", "%YAML 1.1\n---\n" + between(x), 0, []types.NamespacedName{other}},
		{"a byte order mark", "\ufeff" + between(x), 0, []types.NamespacedName{other}},
		{"UTF-16, little-endian", string(encoded(binary.LittleEndian, "\ufeff"+between(x+"# \U0001f600"))), 0, []types.NamespacedName{other}},
		{"UTF-16, big-endian", string(encoded(binary.BigEndian, "\ufeff"+between(x))), 0, []types.NamespacedName{other}},
		{"UTF-16 without a byte order mark", string(encoded(binary.LittleEndian, between(x))), 0, []types.NamespacedName{other}},
		{"big-endian UTF-16 without a byte order mark", string(encoded(binary.BigEndian, between(x))), 0, []types.NamespacedName{other}},
		{"a character of UTF-16 that is no text", string(encoded(binary.BigEndian, "\ufeff"+between("kind: ?"), '?', 0xd800)), 1, nil},
		{"JSON", between(service("x") + "\n" + service("z")), 0, []types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"broken JSON among JSON", between(service("x") + "\n{\"kind\": \n" + service("z")), 2, []types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"an item of a List", between(`{"apiVersion": "v1", "kind": "List", "items": [` + service("x") + `, {"kind": "Service"}, 7, ` + service("z") + "]}"), 2,
			[]types.NamespacedName{other, {Namespace: "shop", Name: "z"}}},
		{"an item of a ServiceList", between(`{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "x", "namespace": "shop"}}, {"spec": {"ports": 7}}, {}, null]}`), 2,
			[]types.NamespacedName{other}},
		{"Lists in Lists", between(strings.Repeat(`{"apiVersion": "v1", "kind": "List", "items": [`, 9) + strings.Repeat("]}", 9)), 1, nil},
		{"a name that is too long", between(serviceYAML(strings.Repeat("x", longestName+1), "172.30.0.3")), 1, nil},
		{"an object that is too large", between(strings.Replace(x, "metadata: {", "metadata: {labels: {a: "+strings.Repeat("x", usualBudget.object)+"}, ", 1)), 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFolder(t)
			f.write("a.yaml", tc.file)
			f.write("b.yaml", serviceYAML("other-file", "172.30.0.9"))
			f.load()
			want := append([]types.NamespacedName{db, {Namespace: "shop", Name: "other-file"}, web}, tc.also...)
			sorted := cmpopts.SortSlices(func(a, b types.NamespacedName) bool { return a.Name < b.Name })
			if diff := cmp.Diff(want, f.source.Services(), sorted); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
			if got := f.reported(); len(got) != tc.reports {
				t.Errorf("reported %q, want %d lines", got, tc.reports)
			}
			if f.load(); len(f.reported()) != 0 {
				t.Error("reported again")
			}
		})
	}
}

// encoded returns a text as UTF-16. The pairs replace units of the result.
func encoded(order binary.AppendByteOrder, text string, pairs ...uint16) (out []byte) {
	for _, unit := range utf16.Encode([]rune(text)) {
		for i := 0; i < len(pairs); i += 2 {
			if unit == pairs[i] {
				unit = pairs[i+1]
			}
		}
		out = order.AppendUint16(out, unit)
	}
	return out
}

// TestRefusedEncodings: a file in an encoding that is not read is reported with its encoding. Nothing of it is served.
func TestRefusedEncodings(t *testing.T) {
	utf32 := func(order binary.AppendByteOrder, text string) (out []byte) {
		for _, r := range text {
			out = order.AppendUint32(out, uint32(r))
		}
		return out
	}
	text := between("")
	for name, tc := range map[string]struct {
		file []byte
		want string
	}{
		"UTF-32, little-endian":               {utf32(binary.LittleEndian, "\ufeff"+text), "UTF-32: save it as UTF-8"},
		"UTF-32, big-endian":                  {utf32(binary.BigEndian, "\ufeff"+text), "UTF-32: save it as UTF-8"},
		"UTF-32 without a byte order mark":    {utf32(binary.LittleEndian, text), "UTF-32: save it as UTF-8"},
		"UTF-16 that ends within a character": {append(encoded(binary.LittleEndian, text), 'x'), "UTF-16, and ends within"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t)
			f.write("a.yaml", string(tc.file))
			f.load()
			if got := f.source.Services(); len(got) > 0 {
				t.Errorf("Services %v", got)
			}
			if got := f.reported(); len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("reported %q, want one line with %q", got, tc.want)
			}
		})
	}
}

// TestEarlierObjectsStayWhileADocumentIsUnreadable: while a document of a file is unreadable, the file's earlier objects stay in use,
// unless another file has them.
func TestEarlierObjectsStayWhileADocumentIsUnreadable(t *testing.T) {
	f := newFolder(t)
	address := func(want string) {
		t.Helper()
		f.load()
		got := ""
		if s := f.source.Get(web).Service; s != nil {
			got = s.Spec.ClusterIP
		}
		if got != want {
			t.Errorf("address %q, want %q", got, want)
		}
	}
	db, broken := serviceYAML("db", "172.30.0.2")+"---\n", "kind: [Service\n"
	f.write("a.yaml", db+serviceYAML("web", "172.30.0.1"))
	address("172.30.0.1")
	f.write("a.yaml", db+broken)
	address("172.30.0.1")
	f.write("a.yaml", db+"# still\n"+broken)
	address("172.30.0.1")
	f.write("b.yaml", serviceYAML("web", "172.30.0.7"))
	address("172.30.0.7")
	f.remove("b.yaml")
	address("172.30.0.1")
	f.write("a.yaml", db)
	address("")
	f.write("a.yaml", db+broken)
	address("")
}

// TestManifestsAreBounded: the source leaves out content above a limit, and reports it in a few lines.
func TestManifestsAreBounded(t *testing.T) {
	f := newFolder(t)
	f.source.parser.documents, f.source.parser.objects, f.source.parser.reports = 8, 6, 2
	var text strings.Builder
	for i := range 20 {
		fmt.Fprintf(&text, "---\n%s---\nkind: [\n", serviceYAML(fmt.Sprint("s", i), "172.30.0.1"))
	}
	f.write("a.yaml", text.String())
	f.write("b.yaml", strings.ReplaceAll(text.String(), "kind: [", ""))
	f.load()
	if got := f.source.Services(); len(got) != 6 {
		t.Errorf("Services: %v, want six", got)
	}
	got := f.reported()
	want := []string{
		"File a.yaml document 2, line 7: cannot", "File a.yaml document 4, line 14: cannot", "File a.yaml has 3 more problems",
		"File b.yaml document 7, line", "File b.yaml document 8, line", "File b.yaml has 1 more problems",
		"Service s0 is in a.yaml and again", "Service s1 is in a.yaml and again", "File b.yaml has 2 more duplicate objects",
	}
	if len(got) != len(want) {
		t.Fatalf("reported %d lines: %q", len(got), got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("line %d: %q, want %q", i, got[i], want[i])
		}
	}
}

// TestAFileThatIsTooLarge: a file is refused by its size before it is read, and also if it grows meanwhile.
func TestAFileThatIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	lab.Must(t, os.WriteFile(path, nil, 0o600))
	lab.Must(t, os.Truncate(path, largestFile+1))
	r := newReader()
	r.readAll = func(string, int64, int64) ([]byte, error) {
		t.Error("a file that is too large is read")
		return nil, nil
	}
	if _, err := r.read(path); err == nil {
		t.Error("a file that is too large is not refused")
	}
	lab.Must(t, os.WriteFile(path, make([]byte, 11), 0o600))
	if _, err := readAtMost(path, 5, 10); err == nil {
		t.Error("a file of 11 bytes is read where 10 are the most")
	}
	if data, err := readAtMost(path, 0, 11); len(data) != 11 || err != nil {
		t.Errorf("a file of 11 bytes: %d, %v", len(data), err)
	}
}

// TestAReadThatDoesNotEnd: a file whose read does not end is reported and left out. The source reads the other files,
// and does not read this file again before the read has ended, or another file has its name.
func TestAReadThatDoesNotEnd(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "10.96.0.9"))
	f.write("web.yaml", serviceYAML("web", "10.96.0.10"))
	r, blocked := newReader(), make(chan struct{})
	var reads atomic.Int32
	r.readAll = func(path string, size, most int64) ([]byte, error) {
		if filepath.Base(path) == "web.yaml" {
			return readAtMost(path, size, most)
		}
		if reads.Add(1) == 1 {
			<-blocked
		}
		return readAtMost(path, size, most)
	}
	check := func(when string, reports int, want ...string) {
		t.Helper()
		f.load()
		var got []string
		for _, name := range f.source.Services() {
			got = append(got, name.Name)
		}
		slices.Sort(got)
		lab.Same(t, want, got, when)
		if lines := f.reported(); len(lines) != reports {
			t.Errorf("%s: reported %q", when, lines)
		}
	}
	f.source.read, r.patience = r.read, time.Second
	check("a read that does not end", 1, "web")
	f.write("web.yaml", serviceYAML("web", "10.96.0.10")+"---\n"+serviceYAML("more", "10.96.0.11"))
	check("a change of another file", 0, "more", "web")
	close(blocked)
	for pending := true; pending; time.Sleep(time.Millisecond) {
		for _, done := range r.pending {
			pending = len(done) == 0
		}
	}
	check("the read has ended", 0, "a", "more", "web")
}

// FuzzSplit: each part of a text is in the text, in the same order.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"a\n---\nb", " ---\nkind: x\nkind: y", "...\n--- # c\n{}\n", "---", "\ufeff---\r\n", "%YAML 1.1\n---\na"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		rest := string(content)
		for _, d := range split(content) {
			for _, part := range append(resplit(d), d) {
				if !strings.Contains(string(content), string(part.text)) || part.line < 1 || part.line > strings.Count(string(content), "\n")+1 {
					t.Errorf("line %d, %q of %q", part.line, part.text, content)
				}
			}
			_, after, found := strings.Cut(rest, string(d.text))
			if !found {
				t.Fatalf("%q is not in %q", d.text, rest)
			}
			rest = after
		}
	})
}
