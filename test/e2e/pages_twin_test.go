//go:build twin

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestPagesAreThoseOfKubeProxy asks both programs, one after the other on the same cluster and with the same flags, for all
// that they serve on their two ports.
func TestPagesAreThoseOfKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, lab.Config{Pods: 1})
	w.apply(checked(checkPort))
	var seen [2]pages
	for i, path := range []string{filepath.Join(bin, "kube-proxy"), program} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			part := *w
			part.T = t
			p := asked{world: &part, path: path}.run("--profiling")
			if _, err := p.AwaitSync(t.Context(), p.Started()); err != nil {
				t.Fatal(err)
			}
			seen[i] = readPages(t, p)
		})
	}
	theirs, ours := seen[0], seen[1]
	if diff := cmp.Diff(theirs.answers, ours.answers); diff != "" {
		t.Errorf("answers (-kube-proxy +ours):\n%s", diff)
	}
	if diff := cmp.Diff(theirs.configz, ours.configz); diff != "" {
		t.Errorf("/configz (-kube-proxy +ours):\n%s", diff)
	}
	for name, kind := range theirs.metrics {
		if got := ours.metrics[name]; got != kind && !notOurs.MatchString(name) {
			t.Errorf("metric %s: kube-proxy has %s, we have %q", name, kind, got)
		}
	}
	if n := len(theirs.metrics); n < 100 {
		t.Errorf("kube-proxy has only %d metrics", n)
	}
}

// notOurs are metrics of kube-proxy that say nothing about a proxy: those of packages that it happens to contain, of features,
// and its version, which would trip alerts about versions that differ.
var notOurs = regexp.MustCompile(`^(aggregator_|apiserver_|authentication_|authorization_|cardinality_|disabled_metrics|hidden_metrics|` +
	`registered_metrics|kubernetes_build_info|kubernetes_feature_enabled|leader_election_|workqueue_|informer_)`)

// pages is what a program serves.
type pages struct {
	// answers are status, content type and, where it can be compared, body by URL.
	answers map[string]string
	// configz is the configuration as JSON.
	configz string
	// metrics are the types of metrics by name, with the names of labels.
	metrics map[string]string
}

// readPages asks for everything.
func readPages(t *testing.T, p *proxy.Program) pages {
	t.Helper()
	const health, metrics = "http://127.0.0.1:10256", "http://127.0.0.1:10249"
	out := pages{answers: map[string]string{}, metrics: map[string]string{}}
	get := func(url string) (status int, body string) {
		status, data, err := p.Get(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return status, string(data)
	}
	err := p.Await(t.Context(), 10*time.Millisecond, "health", func(context.Context) error {
		if status, _ := get(health + "/healthz"); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{
		health + "/healthz", health + "/livez", health + "/metrics", health + "/", metrics + "/livez", metrics + "/", metrics + "/nothing",
		metrics + "/proxyMode", metrics + "/healthz", metrics + "/healthz?verbose", metrics + "/healthz/ping", metrics + "/debug/flags/v",
		metrics + "/debug/pprof/cmdline", metrics + "/metrics/slis", metrics + "/flagz", metrics + "/statusz", metrics + "/configz",
	} {
		status, body := get(url)
		out.answers[url] = fmt.Sprint(status, " ", steady(url, body))
	}
	_, text := get(metrics + "/configz")
	out.configz = canonicalJSON(t, text)
	_, text = get(metrics + "/metrics")
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		out.metrics[m[1]] = m[2]
	}
	return out
}

// steady leaves out of a body what differs from moment to moment and from program to program.
func steady(url, body string) string {
	switch path := url[strings.LastIndex(url, ":"):]; {
	case path == ":10256/healthz", path == ":10256/livez":
		return regexp.MustCompile(`"[^"]*T[^"]*Z"`).ReplaceAllString(body, `"TIME"`)
	case strings.HasSuffix(path, "/slis"):
		return strings.Join(regexp.MustCompile(`(?m)^# TYPE .*$`).FindAllString(body, -1), "\n")
	case strings.HasSuffix(path, "/flagz"), strings.HasSuffix(path, "/statusz"), strings.HasSuffix(path, "/configz"), strings.HasSuffix(path, "cmdline"):
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
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s", group, key, data))
		}
	}
	return strings.Join(lines, "\n")
}
