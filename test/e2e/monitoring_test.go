//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// monitoring is the folder under test.
const monitoring = "../../deploy/monitoring"

// manifest parses a file of YAML or JSON.
func manifest(t testing.TB, path string) (m map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, &m)
	}
	must(t, err)
	return m
}

// writeManifest writes such a file.
func writeManifest(t testing.TB, path string, m any) {
	t.Helper()
	text, err := yaml.Marshal(m)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	must(t, err)
}

// promPrograms returns the folder with prometheus and promtool; it downloads missing ones.
func promPrograms(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../hack/prometheus.sh")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("hack/prometheus.sh: %v\n%s", err, out)
	}
	dir, err := filepath.Abs("../../bin/prometheus")
	must(t, err)
	return dir
}

// alertNames returns the names of the rules.
func alertNames(rules map[string]any) (names []string) {
	for _, group := range rules["groups"].([]any) {
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			names = append(names, rule.(map[string]any)["alert"].(string))
		}
	}
	return names
}

// alertFiles are the files of testdata with series. promtool evaluates all rules at each interval of a file.
var alertFiles = []string{"alerts.yaml", "alerts-day.yaml"}

// TestAlerts makes promtool check the rules and let each alert fire, and not fire, on prepared series. It also checks that alerts
// and runbook sections match.
func TestAlerts(t *testing.T) {
	dir, bin := t.TempDir(), promPrograms(t)
	rules := manifest(t, filepath.Join(monitoring, "rules.yaml"))["spec"].(map[string]any)
	writeManifest(t, filepath.Join(dir, "rules.yaml"), rules)
	for _, file := range alertFiles {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(onAllNodes(string(text))), 0o600)
		}
		must(t, err)
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, append([]string{"test", "rules"}, alertFiles...)} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	names := alertNames(rules)
	fired, quiet := tried(t)
	for _, name := range names {
		if !fired[name] || !quiet[name] {
			t.Errorf("%s: testdata has it fire: %t, and not fire: %t", name, fired[name], quiet[name])
		}
	}
	text := mustRead(t, "../../docs/runbooks.md")
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^## (Kube\w+)$`).FindAllStringSubmatch(text, -1) {
		sections = append(sections, m[1])
	}
	lab.Same(t, slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(sections)), "alerts, and sections of docs/runbooks.md")
}

// onAllNodes repeats each series with node-* for a hundred nodes.
func onAllNodes(tests string) string {
	const nodes = 100
	return regexp.MustCompile(`(?m)^ +- series: .*node-\*.*\n.*\n`).ReplaceAllStringFunc(tests, func(series string) string {
		var all strings.Builder
		for i := range nodes {
			all.WriteString(strings.ReplaceAll(series, "node-*", "node-"+strconv.Itoa(i+1)))
		}
		return all.String()
	})
}

// TestScrapeSelectsEachDaemonSet: both scrape configurations select the pods and one container of deploy/base, and of kubeadm's DaemonSet.
func TestScrapeSelectsEachDaemonSet(t *testing.T) {
	scrape := manifest(t, filepath.Join(monitoring, "scrape.yaml"))["scrape_configs"].([]any)[0].(map[string]any)
	discovery := scrape["kubernetes_sd_configs"].([]any)[0].(map[string]any)
	plain, err := labels.Parse(discovery["selectors"].([]any)[0].(map[string]any)["label"].(string))
	must(t, err)
	var monitor struct {
		Spec struct{ Selector metav1.LabelSelector }
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "podmonitor.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &monitor)
	}
	must(t, err)
	operator, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	must(t, err)
	keep := scrape["relabel_configs"].([]any)[0].(map[string]any)
	container := regexp.MustCompile("^(?:" + keep["regex"].(string) + ")$")
	if keep["action"] != "keep" || fmt.Sprint(keep["source_labels"]) != "[__meta_kubernetes_pod_container_name]" {
		t.Fatalf("the first rule does not keep containers: %v", keep)
	}
	for _, file := range []string{"../../deploy/base/daemonset.yaml", "testdata/kubeadm-v1.36.3.yaml"} {
		pod := daemonSetIn(t, file).Spec.Template
		for name, selector := range map[string]labels.Selector{"scrape.yaml": plain, "podmonitor.yaml": operator} {
			if !selector.Matches(labels.Set(pod.Labels)) {
				t.Errorf("%s: %s does not select pods with labels %v", file, name, pod.Labels)
			}
		}
		kept := slices.DeleteFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return !container.MatchString(c.Name) })
		lab.Same(t, 1, len(kept), "%s: containers are scraped", file)
	}
}

// daemonSetIn returns the DaemonSet of a file of YAML documents.
func daemonSetIn(t testing.TB, file string) (d appsv1.DaemonSet) {
	text := mustRead(t, file)
	for document := range strings.SplitSeq(text, "\n---") {
		d = appsv1.DaemonSet{}
		if err := yaml.Unmarshal([]byte(document), &d); err == nil && d.Kind == "DaemonSet" {
			return d
		}
	}
	t.Fatalf("%s has no DaemonSet", file)
	return d
}

// tried returns the alerts that fire, and those that do not, in testdata.
func tried(t testing.TB) (fired, quiet map[string]bool) {
	fired, quiet = map[string]bool{}, map[string]bool{}
	for _, file := range alertFiles {
		for _, c := range manifest(t, filepath.Join("testdata", file))["tests"].([]any) {
			for _, at := range c.(map[string]any)["alert_rule_test"].([]any) {
				a := at.(map[string]any)
				into := quiet
				if len(a["exp_alerts"].([]any)) > 0 {
					into = fired
				}
				into[a["alertname"].(string)] = true
			}
		}
	}
	return fired, quiet
}

// TestScrapeConfigurationsAreOne compares the relabeling of the PodMonitor with that for a Prometheus without operator.
func TestScrapeConfigurationsAreOne(t *testing.T) {
	plain := manifest(t, filepath.Join(monitoring, "scrape.yaml"))["scrape_configs"].([]any)[0].(map[string]any)["relabel_configs"]
	monitor := manifest(t, filepath.Join(monitoring, "podmonitor.yaml"))["spec"].(map[string]any)
	endpoint := monitor["podMetricsEndpoints"].([]any)[0].(map[string]any)
	inSnakeCase := map[string]string{"sourceLabels": "source_labels", "targetLabel": "target_label"}
	var translated []any
	for _, rule := range endpoint["relabelings"].([]any) {
		r := map[string]any{}
		for key, value := range rule.(map[string]any) {
			if snake, ok := inSnakeCase[key]; ok {
				key = snake
			}
			r[key] = value
		}
		translated = append(translated, r)
	}
	lab.Same(t, plain, any(translated), "scrape.yaml and podmonitor.yaml (-scrape +podmonitor)")
}

// watched is a site with a Prometheus on its node, configured as in deploy/monitoring, but with a scrape every second.
type watched struct {
	*site
	server *proxy.Program
}

// serverAddress is the address of Prometheus.
const serverAddress = "127.0.0.1:9090"

// TestMonitoring makes a real Prometheus scrape the real pod, and evaluates every expression of the dashboard, of the
// kubernetes-mixin's dashboard for kube-proxy and of the alerts while Services change.
func TestMonitoring(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 2}, nil)
	s.serve(s.Pods...)
	s.sh(fmt.Sprintf(`echo 'metricsBindAddress: 0.0.0.0:10249' >> deploy/base/config.conf
`+configured, s.api.Server()))
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	w := watched{site: s}
	w.server = w.prometheus()
	stop := w.churn()
	defer stop()

	t.Run("target", func(t *testing.T) {
		got := w.query(t, `kubenftproxy_build_info`, func(series []series) error {
			if len(series) != 1 {
				return fmt.Errorf("%d series", len(series))
			}
			return nil
		})[0].Metric
		if got["instance"] != nodeName || got["node"] != nodeName || got["job"] != "kube-proxy" {
			t.Errorf("instance, node and job are %q, %q and %q, want the node's name and kube-proxy", got["instance"], got["node"], got["job"])
		}
	})
	for title, expressions := range panels(t) {
		t.Run("panel "+title, func(t *testing.T) { w.haveValues(t, expressions) })
	}
	t.Run("mixin", func(t *testing.T) { w.haveValues(t, mixinQueries) })
	if t.Failed() {
		return
	}
	t.Run("alerts", w.testAlerts)
}

// targets returns the targets that Prometheus's discovery through the API server makes of the pod, one for each container.
// Debian's Prometheus is built without it.
func (w *watched) targets() (list []map[string]any) {
	p, _ := w.pod("kube-nftproxy")
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		list = append(list, map[string]any{"targets": []string{p.Status.PodIP}, "labels": map[string]string{
			"__meta_kubernetes_pod_container_name": c.Name,
			"__meta_kubernetes_pod_ip":             p.Status.PodIP,
			"__meta_kubernetes_pod_node_name":      p.Spec.NodeName,
		}})
	}
	return list
}

// prometheus starts Prometheus on the node.
func (w *watched) prometheus() *proxy.Program {
	w.Helper()
	bin, dir := promPrograms(w), w.T.TempDir()
	config := manifest(w, filepath.Join(monitoring, "scrape.yaml"))
	config["global"] = map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
	config["rule_files"] = []string{"rules.yaml"}
	scrape := config["scrape_configs"].([]any)[0].(map[string]any)
	scrape["scrape_interval"] = "1s"
	delete(scrape, "kubernetes_sd_configs")
	scrape["file_sd_configs"] = []any{map[string]any{"files": []string{"targets.yaml"}}}
	writeManifest(w, filepath.Join(dir, "targets.yaml"), w.targets())
	writeManifest(w, filepath.Join(dir, "prometheus.yaml"), config)
	writeManifest(w, filepath.Join(dir, "rules.yaml"), manifest(w, filepath.Join(monitoring, "rules.yaml"))["spec"])
	p := proxy.ForTest(w.T, proxy.Config{Host: w.Node, Path: filepath.Join(bin, "prometheus"), Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + serverAddress,
	}})
	eventually(w, 2*patience, func() error {
		if p.Exited() {
			w.Fatalf("Prometheus ended: %v", p.Wait())
		}
		status, _, err := p.Get(w.Context(), "http://"+serverAddress+"/-/ready")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	return p
}

// churn changes Services and connects to them until it is stopped: with endpoints, without, and one that cannot be programmed.
func (w *watched) churn() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	bad := service("bad")
	bad.Spec.ExternalIPs = []string{"192.0.2.99"}
	taken := service("taken")
	taken.Spec.ExternalIPs = []string{"192.0.2.99"}
	w.apply(service("web"), service("empty"), bad, taken)
	w.apply(slice("bad", "bad", endpoint(w.Pods[0].IPv4)), slice("taken", "taken", endpoint(w.Pods[0].IPv4)))
	to, refused := w.clusterIPs("web")[0], w.clusterIPs("empty")[0]
	step := func(i int) error {
		s := slice("web", "web", endpoint(w.Pods[i%2].IPv4))
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		objects := []error{w.api.Apply(ctx, s)}
		if i%5 == 0 {
			name := "more-" + strconv.Itoa(i)
			objects = append(objects, w.api.Apply(ctx, service(name), slice(name, name, []discoveryv1.Endpoint{endpoint(w.Pods[0].IPv4)}...)))
		}
		for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
			w.Pods[1].Probe(ctx, proto, to, lab.Options{})
			w.Pods[1].Probe(ctx, proto, refused, lab.Options{})
		}
		return errors.Join(objects...)
	}
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if err := step(i); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("change Services: %v", err)
		}
	}
}

// panels returns the expressions of the dashboard by the panel's title.
func panels(t testing.TB) map[string][]string {
	out := map[string][]string{}
	for _, p := range manifest(t, filepath.Join(monitoring, "dashboard.json"))["panels"].([]any) {
		panel := p.(map[string]any)
		targets, _ := panel["targets"].([]any)
		for _, target := range targets {
			title := panel["title"].(string)
			out[title] = append(out[title], target.(map[string]any)["expr"].(string))
		}
	}
	if len(out) < 20 {
		t.Fatalf("the dashboard has %d panels with expressions: %v", len(out), slices.Sorted(maps.Keys(out)))
	}
	return out
}

// mixinQueries are the expressions of the kubernetes-mixin's dashboard "Kubernetes / Proxy" (dashboards/proxy.libsonnet) that
// have a value if the API server answers. Verb GET has none: watches begin with a list, in both programs.
var mixinQueries = []string{
	`sum(up{job="kube-proxy"})`,
	`sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{job="kube-proxy",instance=~"$instance"}[$__rate_interval]))`,
	`histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{job="kube-proxy",instance=~"$instance"}[$__rate_interval]))`,
	`sum(rate(kubeproxy_network_programming_duration_seconds_count{job="kube-proxy",instance=~"$instance"}[$__rate_interval])) by (instance)`,
	`histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{job="kube-proxy",instance=~"$instance"}[$__rate_interval])) by (instance, le))`,
	`sum(rate(rest_client_requests_total{job="kube-proxy",instance=~"$instance",code=~"2.."}[$__rate_interval]))`,
	`sum by (verb, le) (rest_client_request_duration_seconds_bucket{job="kube-proxy",instance=~"$instance",verb="POST"})`,
	`process_resident_memory_bytes{job="kube-proxy",instance=~"$instance"}`,
	`rate(process_cpu_seconds_total{job="kube-proxy",instance=~"$instance"}[$__rate_interval])`,
	`go_goroutines{job="kube-proxy",instance=~"$instance"}`,
}

// concrete replaces Grafana's variables.
var concrete = strings.NewReplacer("$__rate_interval", "10s", "$__range", "1m", "$cluster", ".*", "$job", ".+", "$instance", ".+")

// foreign matches an expression with metrics of kube-state-metrics or the node exporter, which do not run here.
var foreign = regexp.MustCompile(`\b(kube|node)_\w+`)

// haveValues waits until every expression has a numeric value.
func (w *watched) haveValues(t *testing.T, expressions []string) {
	for _, expr := range expressions {
		if foreign.MatchString(expr) {
			continue
		}
		w.query(t, concrete.Replace(expr), func(all []series) error {
			if !slices.ContainsFunc(all, series.hasNumber) {
				return fmt.Errorf("%s: no number among %d series", expr, len(all))
			}
			return nil
		})
	}
}

// testAlerts checks that only alerts about the test's changes fire, and that one fires after another program has deleted a table.
func (w *watched) testAlerts(t *testing.T) {
	must(t, w.Node.Command(t.Context(), "nft", "delete table ip kube-nftproxy").Run())
	w.query(t, `ALERTS{alertname="KubeNftproxyTablesTouched",alertstate="firing"}`, func(all []series) error {
		if len(all) != 1 {
			return fmt.Errorf("%d alerts fire after the deletion of a table", len(all))
		}
		return nil
	})
	firing := w.query(t, `ALERTS{alertstate="firing"}`, func([]series) error { return nil })
	for _, s := range firing {
		if name := s.Metric["alertname"]; name != "KubeNftproxyTablesTouched" {
			t.Errorf("%s fires: %v", name, s.Metric)
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	must(t, w.ask(t.Context(), "/api/v1/rules", nil, &rules))
	n := 0
	for _, group := range rules.Data.Groups {
		for _, r := range group.Rules {
			n++
			if r.Health != "ok" {
				t.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n == 0 {
		t.Error("Prometheus has no rules")
	}
}

// series is one result of a query: the last value of an instant, or all of a range.
type series struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
	Values [][2]any          `json:"values"`
}

// hasNumber reports whether its value is a number.
func (s series) hasNumber() bool {
	text, _ := s.Value[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	return err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// query repeats a query until check accepts the result.
func (w *watched) query(t *testing.T, expr string, check func([]series) error) (all []series) {
	t.Helper()
	eventually(t, 2*patience, func() error {
		var err error
		if all, err = w.evaluate(t.Context(), "/api/v1/query", url.Values{"query": {expr}}); err != nil {
			return fmt.Errorf("%s: %w", expr, err)
		}
		return check(all)
	})
	return all
}

// evaluate sends a query.
func (w *watched) evaluate(ctx context.Context, path string, query url.Values) ([]series, error) {
	var answer struct {
		Data struct {
			ResultType string
			Result     []series
		}
	}
	err := w.ask(ctx, path, query, &answer)
	return answer.Data.Result, err
}

// ask sends a request to Prometheus and decodes its answer.
func (w *watched) ask(ctx context.Context, path string, query url.Values, answer any) error {
	status, text, err := w.server.Get(ctx, "http://"+serverAddress+path+"?"+query.Encode())
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, text)
	}
	return json.Unmarshal(text, answer)
}
