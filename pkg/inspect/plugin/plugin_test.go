package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// result is the result of a command in a pod.
type result struct {
	out, err string
	code     int
}

// fleet is an API server with Nodes, and with pods that run commands.
type fleet struct {
	*testing.T
	kubeconfig string
	nodes      []string
	// pods has the phase of each node's pod of kube-nftproxy. The name of a pod is "proxy-" and the name of its node.
	pods map[string]string
	// exec runs a command in the pod of a node.
	exec func(node string, args []string) result

	mu       sync.Mutex
	requests []string
	// selector is the label selector of the pods; empty for the default.
	selector string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{T: t, pods: map[string]string{}}
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}],
contexts: [{name: fleet, context: {cluster: c, user: u, namespace: ignored}}], users: [{name: u, user: {token: t}}]}`, server.URL)
	lab.Must(t, os.WriteFile(f.kubeconfig, []byte(text), 0o600))
	return f
}

func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.URL.Path)
	f.mu.Unlock()
	type object = map[string]any
	answer := func(kind string, value object) {
		value["apiVersion"], value["kind"] = "v1", kind
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value)
	}
	switch path := r.URL.Path; {
	case path == "/api/v1/nodes":
		list := []object{{"metadata": object{"name": "windows-1", "labels": object{"kubernetes.io/os": "windows"}}}}
		for _, n := range f.nodes {
			list = append(list, object{"metadata": object{"name": n}})
		}
		answer("NodeList", object{"items": list})
	case path == "/api/v1/namespaces/kube-system/pods" && r.URL.Query().Get("labelSelector") == cmp.Or(f.selector, defaultSelector):
		list := []object{}
		for node, phase := range f.pods {
			if selector := r.URL.Query().Get("fieldSelector"); selector == "" || selector == "spec.nodeName="+node {
				list = append(list, object{"metadata": object{"name": "proxy-" + node}, "status": object{"phase": phase},
					"spec": object{"nodeName": node, "containers": []object{{"name": "first"}, {"name": "second"}}}})
			}
		}
		answer("PodList", object{"items": list})
	case path == "/api/v1/namespaces/elsewhere/pods" && r.URL.Query().Get("labelSelector") == "app=proxy":
		answer("PodList", object{"items": []object{}})
	case path == "/api/v1/namespaces/shop/pods/cart":
		answer("Pod", object{"metadata": object{"name": "cart"}, "spec": object{"nodeName": "node-1"},
			"status": object{"podIPs": []object{{"ip": "10.244.0.9"}, {"ip": "fd00:1::9"}}}})
	case strings.HasPrefix(path, "/api/v1/namespaces/kube-system/pods/proxy-") && strings.HasSuffix(path, "/exec"):
		f.run(w, r, strings.TrimSuffix(strings.TrimPrefix(path, "/api/v1/namespaces/kube-system/pods/proxy-"), "/exec"))
	default:
		w.WriteHeader(http.StatusNotFound)
		answer("Status", object{"status": "Failure", "reason": "NotFound", "code": 404, "message": "not found: " + r.URL.String()})
	}
}

// run answers kubectl exec by the protocol v5.channel.k8s.io: the first byte of a message is the number of the stream.
func (f *fleet) run(w http.ResponseWriter, r *http.Request, node string) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	command := r.URL.Query()["command"]
	if container := r.URL.Query().Get("container"); container != "first" {
		command = append(command, "in", container)
	}
	if r.URL.Query().Get("stdin") == "true" {
		if _, message, err := conn.ReadMessage(); err == nil {
			command = append(command, "<", string(message[1:]))
		}
	}
	got := f.exec(node, command[1:])
	status := map[string]any{"status": "Success"}
	if got.code != 0 {
		status = map[string]any{"status": "Failure", "reason": "NonZeroExitCode", "message": "exit",
			"details": map[string]any{"causes": []any{map[string]any{"reason": "ExitCode", "message": fmt.Sprint(got.code)}}}}
	}
	text, _ := json.Marshal(status)
	for stream, content := range map[byte]string{1: got.out, 2: got.err} {
		if content != "" {
			_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{stream}, content...))
		}
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{3}, text...))
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

// plugin runs the plugin, and returns its output and exit code.
func (f *fleet) plugin(args ...string) (out string, code int) {
	f.Helper()
	var both bytes.Buffer
	code = Run("v1", append([]string{"--kubeconfig", f.kubeconfig, "--context", "fleet"}, args...), strings.NewReader("input"), &both, &both)
	return both.String(), code
}

func statusJSON(t *testing.T, change func(*view.Status)) string {
	t.Helper()
	now := time.Unix(1000, 0)
	s := &view.Status{Version: "v1", Healthy: true, Eligible: true, Time: now, API: view.API{Answers: true},
		Loop: &view.Loop{Last: &view.Sync{Time: now.Add(-90 * time.Second)}}}
	change(s)
	text, err := json.Marshal(s)
	lab.Must(t, err)
	return string(text)
}

// TestSummaryOfTwoHundredNodes: status prints one table of all nodes, and runs on 50 nodes at the same time.
func TestSummaryOfTwoHundredNodes(t *testing.T) {
	const nodes, together = 200, 50
	f := newFleet(t)
	for i := range nodes {
		name := fmt.Sprintf("node-%03d", i)
		f.nodes, f.pods[name] = append(f.nodes, name), "Running"
	}
	f.nodes = append(f.nodes, "bare")
	f.pods["node-007"] = "Pending"
	results := map[string]result{
		"node-042": {code: 1, out: statusJSON(t, func(s *view.Status) {
			s.Healthy = false
			s.Findings = []view.Finding{
				{Severity: view.Wrong, Reason: "SyncsFail", What: "syncs fail: no space"}, {Severity: view.Wrong, Reason: "Much", What: "much"},
				{Severity: view.Warning, Reason: "Little", What: "little"},
			}
		})},
		"node-043": {code: 1, out: statusJSON(t, func(s *view.Status) {
			s.Findings = []view.Finding{
				{Severity: view.Wrong, Reason: "Long", What: strings.Repeat("a long problem ", 20)}, {Severity: view.Wrong, Reason: "Much", What: "much"},
			}
		})},
		"node-100": {code: 2, err: "Error: kube-nftproxy does not run\n"},
	}
	fine := result{out: statusJSON(t, func(*view.Status) {})}
	var mu sync.Mutex
	running, most, full := 0, 0, make(chan struct{})
	f.exec = func(node string, args []string) result {
		if want := []string{"status", "-o", "json"}; !slices.Equal(args, want) {
			t.Errorf("%s runs %q, want %q", node, args, want)
		}
		mu.Lock()
		if running++; running == together && most < together {
			close(full)
		}
		most = max(most, running)
		mu.Unlock()
		<-full // blocks forever unless 50 commands run at the same time
		mu.Lock()
		running--
		mu.Unlock()
		if got, known := results[node]; known {
			return got
		}
		return fine
	}
	begin := time.Now()
	out, code := f.plugin("status")
	t.Logf("%d nodes in %v", nodes, time.Since(begin))
	if code != exitUnable || most != together {
		t.Errorf("exit code %d, want %d; %d commands at the same time, want %d", code, exitUnable, most, together)
	}
	if len(f.requests) != nodes-1+2 {
		t.Errorf("%d requests for %d running pods, want one for each, and two lists", len(f.requests), nodes-1)
	}
	lines := strings.Split(out, "\n")
	if len(lines) < 7 {
		t.Fatalf("the table:\n%s", out)
	}
	want := []string{
		"NODE      HEALTH     VERSION  LAST SYNC  PROBLEMS",
		"node-007  no answer  -        -          pod proxy-node-007 is Pending",
		"node-100  no answer  -        -          kube-nftproxy does not run",
		"bare      no pod     -        -          no pod of kube-nftproxy on this node",
		"node-042  unhealthy  v1       90s ago    syncs fail: no space (and 1 more)",
		"node-000  healthy    v1       90s ago    none",
	}
	long := "node-043  healthy    v1       90s ago    a long problem a long"
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, long) }); i < 0 || len(lines[i]) >= 120 || len(lines[i]) < 110 || !strings.HasSuffix(lines[i], "... (and 1 more)") {
		t.Errorf("no line of 110 to 119 characters that begins with %q:\n%s", long, strings.Join(lines[:8], "\n"))
	} else {
		lines = slices.Delete(lines, i, i+1)
	}
	lab.Same(t, want, lines[:6], "")
	if !strings.HasSuffix(out, "\n\n201 nodes, 196 without a problem\nMuch       2 nodes\nLong       1 node\nSyncsFail  1 node\n") {
		t.Errorf("the end of the table: %q", out[len(out)-80:])
	}
}

// TestPreflightOfTwoHundredNodes: preflight prints one table of all nodes, and the number of nodes for each reason.
func TestPreflightOfTwoHundredNodes(t *testing.T) {
	f := newFleet(t)
	f.selector = "k8s-app=kube-nftproxy-preflight"
	for i := range 200 {
		name := fmt.Sprintf("node-%03d", i)
		f.nodes, f.pods[name] = append(f.nodes, name), "Running"
	}
	f.nodes = append(f.nodes, "bare")
	f.exec = func(node string, args []string) result {
		if want := []string{"preflight", "--root=/host", "-o", "json"}; !slices.Equal(args, want) {
			t.Errorf("%s runs %q, want %q", node, args, want)
		}
		v := view.Preflight{Node: node}
		v.Add("kernel", "6.1.0")
		v.Add("old proxy", "kube-proxy, mode iptables, answers at http://127.0.0.1:10249; its rules: 1 chain", view.Finding{Severity: view.Note, What: "fine"})
		code := exitFine
		if node == "node-007" || node == "node-042" {
			v.Add("kernel", "5.4.0", view.Finding{Severity: view.Wrong, Reason: "KernelTooOld", What: "the kernel 5.4.0 is too old"})
			code = exitWrong
		}
		v.Conclude()
		text, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		return result{out: string(text), code: code}
	}
	out, code := f.plugin("preflight")
	if code != exitWrong {
		t.Errorf("exit code %d, want %d", code, exitWrong)
	}
	lines := strings.Split(out, "\n")
	lab.Same(t, []string{
		"NODE      PREFLIGHT  KERNEL  PRESENT PROXY              PROBLEMS",
		"bare      no pod     -       -                          no pod of deploy/preflight on this node",
		"node-007  not ready  5.4.0   kube-proxy, mode iptables  the kernel 5.4.0 is too old",
		"node-042  not ready  5.4.0   kube-proxy, mode iptables  the kernel 5.4.0 is too old",
		"node-000  ready      6.1.0   kube-proxy, mode iptables  none",
	}, lines[:min(5, len(lines))], "")
	if !strings.HasSuffix(out, "\n\n201 nodes, 198 without a problem\nKernelTooOld  2 nodes\n") {
		t.Errorf("the end of the table: %q", out[max(0, len(out)-80):])
	}
}

// TestCommandsOnNodes checks the arguments, the output and the exit code of commands on one node and on all nodes.
func TestCommandsOnNodes(t *testing.T) {
	f := newFleet(t)
	f.pods = map[string]string{"node-1": "Running", "node-2": "Running"}
	f.exec = func(node string, args []string) result {
		code := 0
		if args[0] == "verify" && node == "node-2" {
			code = 1
		}
		return result{out: node + " ran " + strings.Join(args, " ") + "\n", code: code}
	}
	for args, want := range map[string]struct {
		out  string
		code int
	}{
		"node-1 services -n shop -o wide":             {"node-1 ran services -n shop -o wide\n", 0},
		"node-2 verify":                               {"node-2 ran verify\n", 1},
		"-c second node-1 verify":                     {"node-1 ran verify in second\n", 0},
		"--of shop/cart status":                       {"node-1 ran status\n", 0},
		"trace pod/shop/cart svc/shop/web:http":       {"node-1 ran trace 10.244.0.9 svc/shop/web:http\n", 0},
		"node-2 trace pod/shop/cart [fd00::1]:80/udp": {"node-2 ran trace fd00:1::9 [fd00::1]:80/udp\n", 0},
		"--all verify":                                {"node-1: node-1 ran verify\nnode-2: node-2 ran verify\n", 1},
		"--all diff --config -":                       {"node-1: node-1 ran diff --config - < input\nnode-2: node-2 ran diff --config - < input\n", 0},
		"verify":                                      {"kubectl nftproxy: verify needs a node: kubectl nftproxy NODE verify, or --all\n", 2},
		"node-1":                                      {"kubectl nftproxy: no command for node node-1; see kubectl nftproxy --help\n", 2},
		"--all":                                       {"kubectl nftproxy: no command; see kubectl nftproxy --help\n", 2},
		"stauts":                                      {"kubectl nftproxy: no command for node stauts; did you mean status?\n", 2},
		"servics -n shop":                             {"kubectl nftproxy: -n is not a command; did you mean services?\n", 2},
		"node-1 --cleanup --force":                    {"kubectl nftproxy: --cleanup is not a command: the flags of the plugin are before the node\n", 2},
		"--slector app=x status":                      {"kubectl nftproxy: unknown flag: --slector; did you mean --selector?\n", 2},
		"--version":                                   {"kubectl nftproxy version v1\n", 0},
		"preflight --service-cidrs=10.96.0.0/12":      {"kubectl nftproxy: preflight needs a node: kubectl nftproxy NODE preflight, or --all\n", 2},
		"node-1 diff --config -":                      {"node-1 ran diff --config - < input\n", 0},
		"--of cart status":                            {"kubectl nftproxy: --of takes NAMESPACE/POD\n", 2},
		"--parallel 0 status":                         {"kubectl nftproxy: --parallel must be at least 1\n", 2},
		"node-3 status":                               {"kubectl nftproxy: no pod of kube-nftproxy runs on node node-3 (namespace kube-system, selector \"k8s-app in (kube-nftproxy, kube-proxy)\")\n", 2},
		"--nosuch node-1 status":                      {"kubectl nftproxy: unknown flag: --nosuch\n", 2},
		"--context other status":                      {"kubectl nftproxy: context \"other\" does not exist\n", 2},
		"-n elsewhere --selector app=proxy node-1 status": {"", 2},
	} {
		out, code := f.plugin(strings.Fields(args)...)
		if strings.HasPrefix(args, "--all") {
			lines := strings.SplitAfter(out, "\n")
			slices.Sort(lines)
			out = strings.Join(lines, "")
		}
		if code != want.code || want.out != "" && out != want.out {
			t.Errorf("%s: exit code %d, %q; want %d, %q", args, code, out, want.code, want.out)
		}
	}
	if out, _ := f.plugin("-n", "elsewhere", "--selector", "app=proxy", "node-1", "status"); !strings.Contains(out, "no pod of kube-nftproxy runs on node node-1 (namespace elsewhere") {
		t.Errorf("the flags -n and --selector are not used: %s", out)
	}
}

// TestBundles: the archive of each node becomes a local file. A node whose command fails leaves no file.
func TestBundles(t *testing.T) {
	f := newFleet(t)
	f.pods = map[string]string{"node-1": "Running", "node-2": "Running"}
	f.exec = func(node string, args []string) result {
		if node == "node-2" {
			return result{err: "Error: no answer\n", code: 2}
		}
		return result{out: "archive " + strings.Join(args, " ")}
	}
	t.Chdir(t.TempDir())
	out, code := f.plugin("--all", "bundle")
	files, err := filepath.Glob("*")
	if err != nil || code != exitUnable || len(files) != 1 || !strings.HasPrefix(files[0], "kube-nftproxy-node-1-") ||
		!strings.Contains(out, "node-1: "+files[0]+"\n") || !strings.Contains(out, "node-2: Error: no answer") {
		t.Fatalf("exit code %d, files %q, %v:\n%s", code, files, err, out)
	}
	if text, err := os.ReadFile(files[0]); string(text) != "archive bundle -o -" || err != nil {
		t.Errorf("the archive: %q, %v", text, err)
	}
}
