package zpages

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func get(t *testing.T, h http.Handler, method, path, accept, body string) (code int, kind, text string) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Header().Get("Content-Type"), w.Body.String()
}

func TestFlagz(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.String("zone", "here", "")
	fs.Int("answer", 42, "")
	h := Flagz(fs, func(f *pflag.Flag) string { return f.Value.String() })
	text := "\nkube-nftproxy flagz\n" + warning + "answer=42\nzone=here\n"
	for _, tc := range []struct {
		accept, kind, want string
		code               int
	}{
		{"", "text/plain; charset=utf-8", text, 200},
		{"text/html, */*", "text/plain; charset=utf-8", text, 200},
		{"application/json;v=v1beta1;g=config.k8s.io;as=Flagz", "application/json;g=config.k8s.io;v=v1beta1;as=Flagz",
			`{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-nftproxy"},"flags":{"answer":"42","zone":"here"}}`, 200},
		{"application/yaml; g=config.k8s.io; v=v1beta1; as=Flagz", "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz",
			"apiVersion: config.k8s.io/v1beta1\nflags:\n  answer: \"42\"\n  zone: here\nkind: Flagz\nmetadata:\n  name: kube-nftproxy\n", 200},
		{"application/json;v=v1alpha1;g=config.k8s.io;as=Flagz", "application/json;g=config.k8s.io;v=v1alpha1;as=Flagz",
			`{"kind":"Flagz","apiVersion":"config.k8s.io/v1alpha1","metadata":{"name":"kube-nftproxy"},"flags":{"answer":"42","zone":"here"}}`, 200},
		{"application/json", "application/json", `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
			`"message":"only text/plain, and application/json or application/yaml with ;g=config.k8s.io;v=v1beta1;as=Flagz, can be had",` +
			`"reason":"NotAcceptable","code":406}`, 406},
	} {
		code, kind, got := get(t, h, "GET", "/flagz", tc.accept, "")
		if code != tc.code || kind != tc.kind {
			t.Errorf("Accept %q: %d %s, want %d %s", tc.accept, code, kind, tc.code, tc.kind)
		}
		lab.Same(t, tc.want, got, "Accept %q", tc.accept)
	}
}

func TestStatusz(t *testing.T) {
	started := time.Now().Add(-90 * time.Second)
	h := Statusz("v1.2.3", "1.37", started, []string{"/a", "/b"})
	_, _, text := get(t, h, "GET", "/statusz", "", "")
	for _, want := range []string{"kube-nftproxy statusz\n", "Started: ", "Up: 1m30s\n", "Go version: go1.", "Binary version: v1.2.3\n", "Emulation version: 1.37\n", "Paths: /a /b\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	_, _, text = get(t, h, "GET", "/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", "")
	var s statusz
	lab.Must(t, json.Unmarshal([]byte(text), &s))
	if s.EmulationVersion != "1.37" || s.UptimeSeconds != 90 || s.BinaryVersion != "v1.2.3" || s.StartTime.Unix() != started.Unix() || len(s.Paths) != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestConfigz(t *testing.T) {
	code, kind, text := get(t, Configz(map[string]any{"a.example": map[string]int{"x": 1}}), "GET", "/configz", "", "")
	if code != 200 || kind != "application/json" || text != `{"a.example":{"x":1}}` {
		t.Errorf("%d %s %s", code, kind, text)
	}
	if code, _, _ := get(t, Configz(map[string]any{"a.example": func() {}}), "GET", "/configz", "", ""); code != 500 {
		t.Errorf("what can't be encoded answers %d", code)
	}
}

func TestDebug(t *testing.T) {
	mux := http.NewServeMux()
	level := "0"
	Debug(mux, func(s string) error {
		if s != "4" {
			return errors.New("no number")
		}
		level = s
		return nil
	})
	for _, tc := range []struct {
		method, path, body, want string
		code                     int
	}{
		{"PUT", "/debug/flags/v", "x", "no number\n", 400},
		{"PUT", "/debug/flags/v", "4\n", "successfully set klog.logging.verbosity to 4\n", 200},
		{"GET", "/debug/flags/v", "", "unsupported http method\n", 406},
		{"GET", "/debug/flags", "", flagsPage, 200},
		{"GET", "/debug/pprof", "", "<a href=\"/debug/pprof/\">Found</a>.\n\n", 302},
	} {
		if code, _, text := get(t, mux, tc.method, tc.path, "", tc.body); code != tc.code || text != tc.want {
			t.Errorf("%s %s %q: %d %q, want %d %q", tc.method, tc.path, tc.body, code, text, tc.code, tc.want)
		}
	}
	if code, _, text := get(t, mux, "GET", "/debug/pprof/goroutine?debug=1", "", ""); code != 200 || !strings.Contains(text, "goroutine profile") {
		t.Errorf("profile: %d %q", code, text)
	}
	if level != "4" {
		t.Errorf("the verbosity is %s", level)
	}
}
