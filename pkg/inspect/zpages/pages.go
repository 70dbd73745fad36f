package zpages

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// component is the name of the program on its pages.
const component = "kube-nftproxy"

const warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility " +
	"guarantees and is for debugging purposes only.\n"

// Configz returns a handler for configurations by the names of their API groups, as JSON.
func Configz(configs map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, err := json.Marshal(configs)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		send(w, data)
	})
}

// flagz is Flagz of config.k8s.io, without its kind and version.
type flagz struct {
	metav1.ObjectMeta `json:"metadata"`
	Flags             map[string]string `json:"flags"`
}

// Flagz returns a handler for the command line's flags and their values. shown returns a flag's value without secrets.
func Flagz(fs *pflag.FlagSet, shown func(*pflag.Flag) string) http.Handler {
	return page{kind: "Flagz", object: func() any {
		return flagz{metav1.ObjectMeta{Name: component}, valuesOf(fs, shown)}
	}, text: func(w io.Writer) {
		values := valuesOf(fs, shown)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(w, "%s=%s\n", name, values[name])
		}
	}}
}

func valuesOf(fs *pflag.FlagSet, shown func(*pflag.Flag) string) map[string]string {
	values := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { values[f.Name] = shown(f) })
	return values
}

// statusz is Statusz of config.k8s.io, without its kind and version.
type statusz struct {
	metav1.ObjectMeta `json:"metadata"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion"`
	Paths             []string    `json:"paths"`
}

// Statusz returns a handler for the program's version, the version of the replaced Kubernetes component, the uptime,
// and the paths of other pages.
func Statusz(version, emulated string, started time.Time, paths []string) http.Handler {
	status := func() statusz {
		return statusz{
			metav1.ObjectMeta{Name: component}, metav1.NewTime(started), int64(time.Since(started).Seconds()),
			runtime.Version(), version, emulated, paths,
		}
	}
	return page{kind: "Statusz", object: func() any { return status() }, text: func(w io.Writer) {
		s := status()
		fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\n\nPaths: "+
			"%s\n",
			started.Format(time.UnixDate), time.Duration(s.UptimeSeconds)*time.Second, s.GoVersion, s.BinaryVersion, s.EmulationVersion, strings.Join(paths, " "))
	}}
}

// page has two forms: a text, and an object for clients that request its kind.
type page struct {
	kind string
	// object returns the object without its kind and version.
	object func() any
	text   func(io.Writer)
}

// ServeHTTP answers in the form that the header Accept requests. application/json alone does not select a kind.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accept := r.Header.Get("Accept")
	for _, part := range strings.Split(accept, ",") {
		media, parameters, _ := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
		version := p.version(parameters)
		switch {
		case version != "" && (media == "application/json" || media == "application/yaml"):
			p.structured(w, media, version)
			return
		case media == "" || media == "*/*" || media == "text/*" || media == "text/plain":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, "\n%s %s\n%s", component, strings.ToLower(p.kind), warning) //nolint:errcheck // the client has closed the connection
			p.text(w)
			return
		}
	}
	p.refuse(w)
}

// group is the API group of the objects.
const group = "config.k8s.io"

// version returns the version of the kind in the parameters of a media type, or "".
func (p page) version(parameters string) string {
	have := strings.Split(parameters, ";")
	if !slices.Contains(have, "g="+group) || !slices.Contains(have, "as="+p.kind) {
		return ""
	}
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		if slices.Contains(have, "v="+version) {
			return version
		}
	}
	return ""
}

func (p page) structured(w http.ResponseWriter, media, version string) {
	data, err := p.encode(media, version)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", media, group, version, p.kind))
	if version == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(p.kind)))
	}
	send(w, data)
}

// encode returns the object with its kind and version, which is the only difference between its versions.
func (p page) encode(media, version string) ([]byte, error) {
	data, err := json.Marshal(p.object())
	if err != nil {
		return nil, err
	}
	data = append(fmt.Appendf(nil, `{"kind":%q,"apiVersion":"%s/%s",`, p.kind, group, version), data[1:]...)
	if media == "application/yaml" {
		return yaml.JSONToYAML(data)
	}
	return data, nil
}

// refuse rejects a request for an unsupported form.
func (p page) refuse(w http.ResponseWriter) {
	data, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotAcceptable,
		Code: http.StatusNotAcceptable,
		Message: fmt.Sprintf("only text/plain, and application/json or application/yaml with ;g=%s;v=v1beta1;as=%s, "+
			"can be had", group, p.kind),
	})
	if err != nil {
		panic(err) // the data are constant
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotAcceptable)
	send(w, data)
}

// send writes an answer. An error means that the client has disconnected.
func send(w io.Writer, data []byte) { _, _ = w.Write(data) }
