//go:build twin

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestPagesAreThoseOfKubeProxy queries all pages of both programs' two ports, one after the other on the same cluster and with
// the same flags.
func TestPagesAreThoseOfKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1})
	w.apply(checked(checkPort))
	var seen [2]pages
	for i, path := range bothPrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			part := *w
			part.T = t
			p := asked{world: &part, path: path}.run("--profiling")
			p.Synced(t)
			seen[i] = readPages(&part, p)
			p.Kill()
			for _, line := range []string{ // lines that some tools search for in logs
				`"Using nftables Proxier"`, `"Version info" version=`, `"Golang settings" GOGC=`,
				`"Successfully retrieved NodeIPs" .*NodeIPs=\["192\.0\.2\.1","2001:db8::1"\]`,
			} {
				if text := p.LogTail(1000); !regexp.MustCompile(line).MatchString(text) {
					t.Errorf("the log has no line %s:\n%s", line, text)
				}
			}
			p = asked{world: &part, path: path}.run("--feature-gates=ComponentFlagz=false,ComponentStatusz=false", "--metrics-bind-address=0.0.0.0")
			p.Synced(t)
			for _, path := range []string{"/flagz", "/statusz", "/debug/flags", "/debug/flags/v", "/debug/pprof", "/debug/pprof/heap", "/proxyMode"} {
				r := part.request(http.MethodGet, "http://[::1]:10249"+path, nil, nil)
				seen[i].answers["without gates and profiles: "+path] = fmt.Sprintf("%d %s %s", r.status, headersOf(r), r.body)
			}
		})
	}
	theirs, ours := seen[0], seen[1]
	lab.Same(t, theirs.answers, ours.answers, "answers (-kube-proxy +ours)")
	lab.Same(t, theirs.configz, ours.configz, "/configz (-kube-proxy +ours)")
	for name, kind := range theirs.metrics {
		if got := ours.metrics[name]; got != kind && !notOurs.MatchString(name) {
			t.Errorf("metric %s: kube-proxy has %s, kube-nftproxy has %q", name, kind, got)
		}
	}
	if n := len(theirs.metrics); n < 100 {
		t.Errorf("kube-proxy has only %d metrics", n)
	}
}

// notOurs are metrics of kube-proxy that do not exist here; docs/metrics.md explains why.
var notOurs = regexp.MustCompile(`^(aggregator_|apiserver_|cardinality_enforcement_|disabled_metrics|hidden_metrics|registered_metrics|` +
	`kubernetes_build_info$)`)

// pages is the content of a program's ports.
type pages struct {
	// answers are status, content type and, if it is comparable, body by URL.
	answers map[string]string
	// configz is the configuration as JSON.
	configz string
	// metrics are the types of metrics by name, with the names of labels.
	metrics map[string]string
}

// readPages requests all pages.
func readPages(w *world, p *proxy.Program) pages {
	t := w.T
	t.Helper()
	const health, metrics = "http://127.0.0.1:10256", "http://127.0.0.1:10249"
	out := pages{answers: map[string]string{}, metrics: map[string]string{}}
	get := func(url string) (status int, body string) {
		status, data, err := p.Get(t.Context(), url)
		must(t, err)
		return status, string(data)
	}
	err := p.Await(t.Context(), 10*time.Millisecond, "health", func(context.Context) error {
		if status, _ := get(health + "/healthz"); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	must(t, err)
	for _, q := range questions(health, metrics) {
		r := w.request(q.method, q.url, q.header, strings.NewReader(q.body))
		out.answers[q.String()] = fmt.Sprintf("%d %s %s", r.status, headersOf(r), steady(q.url, r.body))
	}
	// The last request has set the verbosity.
	_, text := get(metrics + "/configz")
	out.configz = canonicalJSON(t, text)
	_, text = get(metrics + "/metrics")
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		out.metrics[m[1]] = m[2]
	}
	return out
}

// question is one request.
type question struct {
	method, url string
	header      http.Header
	body        string
}

func (q question) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", q.method, q.url, q.header.Get("Accept"), q.body))
}

// questions are the requests whose answers are compared.
func questions(health, metrics string) (list []question) {
	for _, url := range []string{
		health + "/healthz", health + "/livez", "http://[::1]:10256/livez", health + "/metrics", health + "/", health + "/healthz/", metrics + "/livez", metrics + "/",
		metrics + "/nothing", metrics + "/proxyMode", metrics + "/proxyMode/", metrics + "/healthz", metrics + "/healthz?verbose",
		metrics + "/healthz?verbose=false", metrics + "/healthz?exclude=ping", metrics + "/healthz/ping", metrics + "/healthz/log",
		metrics + "/debug/flags", metrics + "/debug/flags/v", metrics + "/debug/flags/x", metrics + "/debug/pprof", metrics + "/debug/pprof/cmdline",
		metrics + "/debug/pprof/goroutine?debug=1", metrics + "/metrics/slis", metrics + "/flagz", metrics + "/statusz", metrics + "/configz",
		metrics + "/metrics", metrics + "/metrics/", metrics + "/configz/",
	} {
		list = append(list, question{http.MethodGet, url, nil, ""}, question{http.MethodHead, url, nil, ""}, question{http.MethodPost, url, nil, "x"})
	}
	for _, page := range []string{"/flagz", "/statusz"} {
		kind := strings.ToUpper(page[1:2]) + page[2:]
		for _, accept := range []string{
			"text/plain", "*/*", "application/json", "application/json;v=v1beta1;g=config.k8s.io;as=" + kind, "application/yaml;v=v1beta1;g=config.k8s.io;as=" + kind,
			"application/json;v=v1alpha1;g=config.k8s.io;as=" + kind, "application/cbor;v=v1beta1;g=config.k8s.io;as=" + kind,
			"application/json;v=v1beta1;g=config.k8s.io;as=Other", "text/html", "image/png, text/plain",
		} {
			list = append(list, question{http.MethodGet, metrics + page, http.Header{"Accept": {accept}}, ""})
		}
	}
	return append(list, question{http.MethodDelete, metrics + "/metrics/slis", nil, ""}, question{http.MethodPut, metrics + "/debug/flags/v", nil, "x"},
		question{http.MethodPut, metrics + "/debug/flags/v", nil, "3"})
}

// headersOf returns the relevant headers, in order.
func headersOf(r response) string {
	var list []string
	for name, values := range r.header {
		value := strings.Join(values, ",")
		switch name {
		case "Date", "Content-Length", "Vary", "Connection", "Server": // of the connection, the time, or the program's name
			continue
		case "Process-Start-Time-Unix":
			value = "TIME"
		}
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// steady removes parts of a body that differ from time to time and between the programs.
func steady(url, body string) string {
	body = strings.ReplaceAll(body, `": `, `":`) // kube-proxy indents some JSON
	switch path := url[strings.LastIndex(url, ":"):]; {
	case path == ":10256/healthz", path == ":10256/livez":
		return regexp.MustCompile(`"[^"]*T[^"]*Z"`).ReplaceAllString(body, `"TIME"`)
	case strings.HasSuffix(path, "/slis"):
		return strings.Join(regexp.MustCompile(`(?m)^# TYPE .*$`).FindAllString(body, -1), "\n")
	case strings.HasSuffix(path, "/flagz"):
		// The program has more flags.
		return strings.Join(regexp.MustCompile(`apiVersion|kind"?: *"?\w+|metadata|creationTimestamp|Warning: .*|"?bind-address"?|config.k8s.io/v1\w+|NotAcceptable`).FindAllString(body, -1), " ")
	case strings.HasSuffix(path, "/statusz"):
		// Names of fields, and values that both programs share. In the text, the separator of names and values is random.
		return strings.Join(regexp.MustCompile(`apiVersion|kind"?: *"?\w+|metadata|(?i:(start|binary|emulation|go) ?(ed|time|version))|Up|uptimeSeconds|[pP]aths|`+
			`/(config|flag|health)z|/metrics|/proxyMode|Warning: .*|config.k8s.io/v1\w+|NotAcceptable`).FindAllString(body, -1), " ")
	case strings.HasSuffix(path, "/metrics"), strings.HasSuffix(path, "/configz"), strings.Contains(path, "/pprof/"):
		return ""
	}
	return body
}

func canonicalJSON(t *testing.T, text string) string {
	t.Helper()
	var value map[string]map[string]any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(errors.Join(err, errors.New(text)))
	}
	var lines []string
	for group, config := range value {
		for _, key := range slices.Sorted(maps.Keys(config)) {
			data, err := json.Marshal(config[key])
			must(t, err)
			lines = append(lines, fmt.Sprintf("%s %s: %s", group, key, data))
		}
	}
	return strings.Join(lines, "\n")
}

// response is an answer of one of the programs' HTTP servers.
type response struct {
	status int
	header http.Header
	body   string
}

// request sends a request to a port of the program on the node.
func (w *world) request(method, url string, header http.Header, body io.Reader) response {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, url, body)
	must(w, err)
	maps.Copy(req.Header, header)
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.Node.Dial(ctx, inet.TCP, netip.MustParseAddrPort(address))
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	must(w, err)
	defer resp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(resp.Body)
	must(w, err)
	return response{resp.StatusCode, resp.Header, string(text)}
}
