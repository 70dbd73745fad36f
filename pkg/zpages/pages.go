package zpages

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Component names the program on its pages.
const Component = "kube-nftproxy"

const warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// Configz answers with configurations by the names of their API groups, as JSON.
func Configz(configs map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, err := json.Marshal(configs)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		send(w, data)
	})
}

// flagz is config.k8s.io/v1beta1 Flagz.
type flagz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Flags             map[string]string `json:"flags"`
}

// Flagz answers with the command line's flags and their values.
func Flagz(fs *pflag.FlagSet) http.Handler {
	return page{kind: "Flagz", object: func() any {
		return flagz{metaOf("Flagz"), metav1.ObjectMeta{Name: Component}, valuesOf(fs)}
	}, text: func(w io.Writer) {
		values := valuesOf(fs)
		names := make([]string, 0, len(values))
		for name := range values {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Fprintf(w, "%s=%s\n", name, values[name])
		}
	}}
}

func valuesOf(fs *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// statusz is config.k8s.io/v1beta1 Statusz.
type statusz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	Paths             []string    `json:"paths"`
}

// Statusz answers with the program's version, its age, and the paths of other pages.
func Statusz(version string, started time.Time, paths []string) http.Handler {
	status := func() statusz {
		return statusz{
			metaOf("Statusz"), metav1.ObjectMeta{Name: Component}, metav1.NewTime(started), int64(time.Since(started).Seconds()),
			runtime.Version(), version, paths,
		}
	}
	return page{kind: "Statusz", object: func() any { return status() }, text: func(w io.Writer) {
		s := status()
		fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\n\nPaths: %s\n",
			started.Format(time.UnixDate), time.Duration(s.UptimeSeconds)*time.Second, s.GoVersion, s.BinaryVersion, strings.Join(paths, " "))
	}}
}

func metaOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: "config.k8s.io/v1beta1"}
}

// page has two forms: a text for people, and an object for those who ask for its kind.
type page struct {
	kind   string
	object func() any
	text   func(io.Writer)
}

// ServeHTTP answers in the form that the header Accept asks for; application/json alone isn't enough to promise a form.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accept := r.Header.Get("Accept")
	for _, part := range strings.Split(accept, ",") {
		media, parameters, _ := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
		structured := media == "application/json" || media == "application/yaml"
		switch {
		case structured && p.asks(parameters):
			p.structured(w, media)
			return
		case media == "" || media == "*/*" || media == "text/*" || media == "text/plain":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, "\n%s %s\n%s", Component, strings.ToLower(p.kind), warning) //nolint:errcheck // the asker has gone
			p.text(w)
			return
		}
	}
	http.Error(w, fmt.Sprintf("only text/plain, and application/json or application/yaml with ;g=config.k8s.io;v=v1beta1;as=%s, can be had",
		p.kind), http.StatusNotAcceptable)
}

func (p page) asks(parameters string) bool {
	have := strings.Split(parameters, ";")
	for _, want := range []string{"g=config.k8s.io", "v=v1beta1", "as=" + p.kind} {
		if !slices.Contains(have, want) {
			return false
		}
	}
	return true
}

func (p page) structured(w http.ResponseWriter, media string) {
	marshal := json.Marshal
	if media == "application/yaml" {
		marshal = yaml.Marshal
	}
	data, err := marshal(p.object())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	send(w, data)
}

// send writes an answer; if that fails, the asker has gone, and there is nobody to tell.
func send(w io.Writer, data []byte) { _, _ = w.Write(data) }
