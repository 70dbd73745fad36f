package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestIsCommand: flags, and the values of flags, are no commands.
func TestIsCommand(t *testing.T) {
	for args, want := range map[string]bool{
		"":                                     false,
		"--config /etc/config.conf":            false,
		"--hostname-override status":           false,
		"--hostname_override status -v 4":      false,
		"--cleanup":                            false,
		"extra arg":                            false,
		"--version":                            false,
		"-h":                                   false,
		"status":                               true,
		"services default/web -o json":         true,
		"-v 2 status":                          true,
		"--hostname-override status verify":    true,
		"help status":                          true,
		"completion bash":                      true,
		"__complete services default/":         true,
		"__completeNoDesc services default/":   true,
		"trace 10.0.0.1 10.96.0.1:80":          true,
		"--feature-gates=A=true --init-only":   false,
		"--nodeport-addresses services,verify": false,
	} {
		root := New("dev", nil)
		root.InitDefaultHelpCmd()
		list := strings.Fields(args)
		root.InitDefaultCompletionCmd(list...)
		lab.Same(t, want, isCommand(root, list), "isCommand(%q)", args)
	}
}

// TestMistypedCommands: the error for a mistyped command names the similar command, and the exit code is 2. Other arguments remain errors of the
// daemon.
func TestMistypedCommands(t *testing.T) {
	for args, similar := range map[string]string{
		"staus": "status", "staus -o json": "status", "servces default/web": "services", "veriffy": "verify",
		"get services": "services", "get svc web": "services", "describe services shop/web": "services", "get pods": "",
		"status": "", "extra arg": "", "": "", "-v 2 staus": "", "--staus": "",
	} {
		root := New("dev", nil)
		err := mistyped(root, strings.Fields(args))
		if (err != nil) != (similar != "") || err != nil && !strings.Contains(err.Error(), similar) {
			t.Errorf("%q: %v, want an error with %q", args, err, similar)
		}
	}
	before := os.Args
	t.Cleanup(func() { os.Args = before })
	os.Args = []string{"kube-nftproxy", "staus"}
	lab.Same(t, exitUnable, Run("dev", nil), "staus: exit code")
}

func TestFormats(t *testing.T) {
	value := view.Services{Node: "n", NodePortAddresses: []string{}, Services: []view.Service{}}
	for format, want := range map[string]string{
		"table": "plain\n", "wide": "wide\n",
		"yaml":             "apiVersion: kube-nftproxy.io/v1alpha1\nkind: Services\nnode: \"n\"\nnodePortAddresses: []\nservices: []\n",
		"jsonpath={.node}": "n", "jsonpath=.node": "n", "jsonpath=node": "n", "jsonpath={.nosuch}": "",
		"jsonpath=kind": "Services", "custom-columns=NAME:.name": "", "custom-columns=K:kind,N:.nodePortAddresses[0]": "",
		"json": "{\n  \"kind\": \"Services\",\n  \"apiVersion\": \"kube-nftproxy.io/v1alpha1\",\n  \"node\": \"n\",\n  \"nodePortAddresses\": [],\n  \"services\": []\n}\n",
	} {
		var out output
		cmd := &cobra.Command{}
		out.flags(cmd)
		lab.Must(t, cmd.Flags().Parse([]string{"-o", format}))
		var b bytes.Buffer
		err := out.print(&b, &value, func(p *view.Printer) { p.Printf("%s\n", map[bool]string{false: "plain", true: "wide"}[p.Wide]) })
		if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
			t.Errorf("-o %s: %v (-want +got):\n%s", format, err, diff)
		}
	}
	var out output
	cmd := &cobra.Command{}
	out.flags(cmd)
	for _, format := range []string{"xml", "name", "jsonpath", "jsonpath={.x", "custom-columns", "custom-columns=x", "custom-columns=X:{.x"} {
		if err := cmd.Flags().Parse([]string{"-o", format}); err == nil {
			t.Errorf("-o %s is accepted", format)
		}
	}
}

// TestCustomColumns: each item of the list is a row, and a value without a list is one row.
func TestCustomColumns(t *testing.T) {
	for _, c := range []struct {
		value          any
		columns, wants string
	}{
		{&view.Services{Services: []view.Service{{Namespace: "shop", Name: "web"}, {Namespace: "shop", Name: "cart", Ports: []view.ServicePort{{Protocol: "tcp"}}}}},
			"NAME:.name,PROTOCOL:.ports[*].protocol", "NAME  PROTOCOL\nweb   <none>\ncart  tcp\n"},
		{&versions{Version: "v1"}, "V:.version,KIND:.kind", "V   KIND\nv1  Versions\n"},
	} {
		var b bytes.Buffer
		out := output{format: formatColumns, template: c.columns}
		lab.Must(t, out.print(&b, c.value, nil))
		lab.Same(t, c.wants, b.String(), "custom-columns=%s", c.columns)
	}
}

// TestColours: by default, output has colours only on a terminal.
func TestColours(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	lab.Must(t, err)
	defer terminal.Close()
	for _, c := range []struct {
		color, noColor, term string
		to                   io.Writer
		want                 bool
	}{
		{"auto", "", "xterm", terminal, true},
		{"auto", "1", "xterm", terminal, false},
		{"auto", "", "dumb", terminal, false},
		{"auto", "", "xterm", &bytes.Buffer{}, false},
		{"never", "", "xterm", terminal, false},
		{"always", "1", "dumb", &bytes.Buffer{}, true},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		out := output{format: formatTable, color: c.color}
		lab.Same(t, c.want, out.printer(c.to).Color, "%+v: out.printer(c.to).Color", c)
	}
}

// fakeDaemon is a running program with the given answers.
type fakeDaemon struct {
	*testing.T
	socket string
	// answers has the value of each page. queries are the parameters of the received queries, in order.
	answers map[string]any
	queries []string
	// events are sent to the command that watches, one after the other.
	events []any
}

func newFakeDaemon(t *testing.T, answers map[string]any) *fakeDaemon {
	t.Helper()
	a := &fakeDaemon{T: t, socket: filepath.Join(t.TempDir(), "s"), answers: answers}
	l, err := net.Listen("unix", a.socket)
	lab.Must(t, err)
	server := &http.Server{Handler: a}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return a
}

func (a *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := strings.TrimPrefix(r.URL.Path, "/")
	if r.URL.RawQuery != "" {
		query, _ := url.QueryUnescape(r.URL.RawQuery)
		a.queries = append(a.queries, query)
	}
	e := json.NewEncoder(w)
	if page == control.PageWatch {
		w.WriteHeader(http.StatusOK)
		for _, event := range a.events {
			_ = e.Encode(event)
		}
		return
	}
	value, known := a.answers[page]
	if change, ok := value.(func() any); ok {
		value = change()
	}
	if !known {
		http.Error(w, "no such object", http.StatusNotFound)
		return
	}
	_ = e.Encode(value)
}

// run runs a command line, and returns the standard output and the exit code.
func (a *fakeDaemon) run(args string) (out string, code int) {
	a.Helper()
	file, err := os.CreateTemp(a.TempDir(), "out")
	lab.Must(a, err)
	defer file.Close()
	before := os.Stdout
	os.Stdout = file
	root := New("v1", nil)
	root.SetOut(file)
	root.SetArgs(append(strings.Fields(args), "--control-socket", a.socket))
	code = execute(root)
	os.Stdout = before
	text, err := os.ReadFile(file.Name())
	lab.Must(a, err)
	return string(text), code
}

// webService returns a Service with an endpoint, or with none.
func webService(endpoints int) view.Service {
	return view.Service{Namespace: "shop", Name: "web", Ports: []view.ServicePort{{
		Name: "http", Protocol: "tcp", Family: "IPv4", Frontends: []view.Frontend{{Address: "10.96.0.1:80", Kind: "ClusterIP", Policy: "Cluster", Endpoints: endpoints}},
	}}}
}

func services(list ...view.Service) *view.Services { return &view.Services{Services: list} }

// TestExitCodes checks the exit codes of all commands. trace_test.go checks trace, render and diff with a kernel.
func TestExitCodes(t *testing.T) {
	fine := &view.Status{Healthy: true, Eligible: true, Loop: &view.Loop{}, API: view.API{Answers: true}}
	good := newFakeDaemon(t, map[string]any{
		control.PageStatus: fine, control.PageServices: services(webService(1)), control.PageVerify: &view.Verification{}, control.PageBundle: "x",
		control.PageSettings: &config.Running{Version: "v0"}, control.PageNames: []string{},
	})
	bad := newFakeDaemon(t, map[string]any{
		control.PageStatus: &view.Status{}, control.PageServices: services(webService(0)), control.PageVerify: &view.Verification{Findings: []view.Finding{{Severity: view.Wrong}}},
	})
	missing := newFakeDaemon(t, map[string]any{control.PageServices: &view.Services{NotFound: []string{"there is no Service"}}})
	none := newFakeDaemon(t, map[string]any{control.PageServices: services()})
	silent := &fakeDaemon{T: t, socket: filepath.Join(t.TempDir(), "none")}
	tested := map[string]bool{}
	for _, c := range []struct {
		program *fakeDaemon
		args    string
		code    int
	}{
		{good, "status", exitFine}, {bad, "status", exitWrong}, {silent, "status", exitUnable}, {good, "status extra", exitUnable}, {good, "status --nosuch", exitUnable},
		{good, "services", exitFine}, {bad, "services", exitFine}, {bad, "services --wrong", exitWrong}, {good, "services --wrong", exitFine},
		{good, "services shop/web", exitFine}, {bad, "services svc/web -n shop", exitWrong}, {bad, "services 10.96.0.1", exitWrong}, {missing, "services shop/nosuch", exitUnable},
		{none, "services -n nosuch", exitFine}, {good, "services -n shop other/web", exitUnable}, {silent, "services", exitUnable}, {good, "services -o xml", exitUnable},
		{good, "services --sort-by {", exitUnable}, {good, "services --sort-by .nosuch", exitUnable}, {good, "services --try", exitUnable},
		{good, "verify", exitFine}, {bad, "verify", exitWrong}, {silent, "verify", exitUnable}, {good, "verify extra", exitUnable}, {good, "verify -o wide", exitFine},
		{silent, "watch", exitUnable}, {good, "watch 10.96.0.1", exitUnable}, {good, "watch", exitUnable}, // the program exits
		{good, "bundle -o -", exitFine}, {silent, "bundle -o -", exitUnable}, {bad, "bundle -o -", exitUnable}, {good, "bundle -o /nonexistent/x", exitUnable},
		{good, "version", exitFine}, {silent, "version --client", exitFine}, {silent, "version", exitFine}, {good, "version extra", exitUnable},
		{good, "trace x 10.96.0.1:80", exitUnable}, {good, "trace 10.0.0.1 x", exitUnable}, {good, "trace 10.0.0.1", exitUnable}, {silent, "trace node svc/shop/web", exitUnable},
		{good, "render", exitUnable}, {good, "render -f /nonexistent", exitUnable}, {good, "render --nosuch", exitUnable},
		{silent, "preflight extra", exitUnable}, {silent, "preflight -o name", exitUnable}, {silent, "preflight", exitUnable},
		{good, "preflight --service-cidrs=10.96.0.0/33", exitUnable}, // test/e2e has the other codes
		{silent, "diff", exitUnable}, {good, "diff extra", exitUnable}, {good, "diff --nosuch", exitUnable},
	} {
		tested[strings.Fields(c.args)[0]] = true
		if out, code := c.program.run(c.args); code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", c.args, code, c.code, out)
		}
	}
	page, err := os.ReadFile("../../../docs/debugging.md")
	lab.Must(t, err)
	for _, e := range exitCodes {
		lab.Contains(t, string(page), "docs/debugging.md", fmt.Sprintf("| %d | %s |\n", e.code, e.meaning))
	}
	for _, cmd := range New("v1", nil).Commands() {
		if !tested[cmd.Name()] {
			t.Errorf("no exit code of %s is tested", cmd.Name())
		}
		for _, e := range exitCodes {
			if !strings.Contains(cmd.Long, e.meaning) {
				t.Errorf("%s --help lacks exit code %d", cmd.Name(), e.code)
			}
		}
	}
}

// TestSimilarFlags: the error for an unknown flag names similar ones, of a command and of the daemon.
func TestSimilarFlags(t *testing.T) {
	for args, want := range map[string]string{
		"services --namspace x": "did you mean --namespace?", "status --ouput json": "did you mean --output?", "--cluster-cdir 10.0.0.0/8": "did you mean --cluster-cidr?",
		"services --completely-different": "", "services -x": "", "--nosuch": "",
	} {
		root := New("v1", nil)
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		if err == nil || !strings.Contains(err.Error(), want) || want == "" && strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestSelection checks the query of each form of names and flags.
func TestSelection(t *testing.T) {
	a := newFakeDaemon(t, map[string]any{control.PageServices: services(webService(1))})
	for args, want := range map[string]string{
		"":                              "namespace=&selector=",
		"-A":                            "namespace=&selector=",
		"-n shop":                       "namespace=shop&selector=",
		"-n shop -A":                    "namespace=&selector=",
		"-l app=web":                    "namespace=&selector=app=web",
		"shop/":                         "namespace=shop&selector=",
		"web":                           "name=web&namespace=&selector=",
		"svc/web":                       "name=web&namespace=&selector=",
		"svc/shop/web":                  "name=shop/web&namespace=&selector=",
		"services/shop/web:http":        "name=shop/web&namespace=&selector=",
		"shop/web -n shop":              "name=shop/web&namespace=shop&selector=",
		"svc/web -n shop":               "name=shop/web&namespace=shop&selector=",
		"shop/web default/api":          "name=shop/web&name=default/api&namespace=&selector=",
		"10.96.0.1 10.96.0.2:80 30080":  "name=10.96.0.1&name=10.96.0.2:80&name=30080&namespace=&selector=",
		"fd00::1 [fd00::1]:80 shop/web": "name=fd00::1&name=[fd00::1]:80&name=shop/web&namespace=&selector=",
	} {
		a.queries = nil
		if _, code := a.run("services " + args); code != exitFine || len(a.queries) != 1 || a.queries[0] != want {
			t.Errorf("%q: exit code %d, query %q, want %q", args, code, a.queries, want)
		}
	}
}

// TestListOfServices checks the output of the flags of kubectl.
func TestListOfServices(t *testing.T) {
	api := webService(1)
	api.Namespace, api.Name, api.Ports[0].AffinitySeconds = "default", "api", 10800
	a := newFakeDaemon(t, map[string]any{control.PageServices: services(api, webService(0))})
	for args, want := range map[string]string{
		"-o name":                        "service/default/api\nservice/shop/web\n",
		"-o name --sort-by .name":        "service/default/api\nservice/shop/web\n",
		"-o name --sort-by {.namespace}": "service/default/api\nservice/shop/web\n",
		"-o name --sort-by .ports[0].frontends[0].endpoints": "service/shop/web\nservice/default/api\n",
		"-o jsonpath={.services[*].name}":                    "api web",
		"-o name --wrong":                                    "service/shop/web\n",
		"--no-headers": "default/api:http  ClusterIP  10.96.0.1:80/TCP  1 of 0  -\n" +
			"shop/web:http     ClusterIP  10.96.0.1:80/TCP  0       -\n",
	} {
		if out, _ := a.run("services " + args); out != want {
			t.Errorf("services %s:\n%s\nwant:\n%s", args, out, want)
		}
	}
}

// TestWatchedServices: after the list, services --watch prints Services that a commit has changed.
func TestWatchedServices(t *testing.T) {
	reads := 0
	a := newFakeDaemon(t, map[string]any{control.PageServices: func() any {
		reads++
		other, n := webService(1), uint64(reads) // only its counts change
		other.Name, other.Ports[0].Full, other.Ports[0].Frontends[0].Connections = "other", n, &n
		return services(webService(reads/2), other)
	}})
	commit := func(names ...string) any {
		var c view.Commit
		for _, n := range names {
			c.Services = append(c.Services, view.Change{Service: n, What: "changed"})
		}
		return c
	}
	a.events = []any{commit("shop/web"), commit("default/x"), commit("shop/web"), view.Commit{Why: "a rewrite"}}
	out, code := a.run("services -n shop -w --no-headers -o jsonpath={.services[*].ports[0].frontends[0].endpoints}|")
	if want := "0 1|1|2|"; out != want && strings.ReplaceAll(out, "\n", "") != want {
		t.Errorf("%q, want %q", out, want)
	}
	if code != exitUnable || reads != 4 {
		t.Errorf("exit code %d after %d reads, want %d (the program has exited) after 4", code, reads, exitUnable)
	}
	a.events = []any{commit("shop/web", "default/x"), commit("default/x")}
	if out, _ = a.run("watch shop/web -o jsonpath={.services[*].service}"); out != "shop/web\n" {
		t.Errorf("watch shop/web: %q", out)
	}
}

// TestOperandsOfTrace resolves names of pods and of Services.
func TestOperandsOfTrace(t *testing.T) {
	two := webService(1)
	two.Ports = append(two.Ports, view.ServicePort{Name: "dns", Protocol: "udp", Frontends: []view.Frontend{{Address: "[fd00::1]:53", Kind: "ClusterIP"}}},
		view.ServicePort{Name: "*", Protocol: "udp", Frontends: []view.Frontend{{Address: "10.96.0.1:50-70", Kind: "ClusterIP"}, {Address: "[fd00::1]:50-70", Kind: "ClusterIP"}}})
	a := newFakeDaemon(t, map[string]any{control.PageServices: services(two), control.PagePod: []string{"10.244.0.9", "fd00:1::9"}})
	q := question{socket: a.socket}
	for args, want := range map[string]string{
		"10.0.0.1 10.96.0.1:80/tcp":     "10.0.0.1 10.96.0.1:80/tcp",
		"node svc/shop/web:http":        "node 10.96.0.1:80/tcp",
		"node svc/web:80":               "node 10.96.0.1:80/tcp",
		"pod/shop/cart svc/shop/web:80": "10.244.0.9 10.96.0.1:80/tcp",
		"pod/cart svc/web:dns":          "fd00:1::9 [fd00::1]:53/udp",
		"pod/cart svc/web:53/udp":       "fd00:1::9 [fd00::1]:53/udp",
		"pod/cart svc/web:70":           "10.244.0.9 10.96.0.1:70/udp",
		"pod/cart svc/web:71":           "choose a port of Service shop/web: http (80/tcp), dns (53/udp), * (50-70/udp)",
		"pod/cart svc/web":              "choose a port of Service shop/web: http (80/tcp), dns (53/udp), * (50-70/udp)",
		"pod/cart svc/web:nosuch":       "choose a port of Service shop/web: http (80/tcp), dns (53/udp), * (50-70/udp)",
		"pod/a/b/c svc/web:80":          "not the name of a pod",
		"pod/cart svc/a/b/c":            "not the name of a Service",
	} {
		fields := strings.Fields(args)
		from, to, err := q.resolve(t.Context(), "shop", fields[0], fields[1])
		if got := from + " " + to; err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want %s", args, got, err, want)
		}
	}
}

// TestBundleInAReadOnlyFolder: if the current folder is read-only, bundle writes the archive into the folder of the socket.
func TestBundleInAReadOnlyFolder(t *testing.T) {
	a := newFakeDaemon(t, map[string]any{control.PageBundle: "content"})
	t.Chdir("/proc") // no program can write there
	out, code := a.run("bundle")
	file := strings.TrimSpace(out)
	text, err := os.ReadFile(file)
	if code != exitFine || err != nil || filepath.Dir(file) != filepath.Dir(a.socket) || !strings.Contains(string(text), "content") {
		t.Errorf("exit code %d, file %q: %q, %v", code, file, text, err)
	}
}
