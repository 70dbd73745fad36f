//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// desk is a lab whose node is served from a folder of manifests, with the socket on which the program answers commands.
type desk struct {
	*testing.T
	*lab.Lab
	dir, socket string
	program     *proxy.Program
}

// newDesk starts the program with one file of manifests and further flags.
func newDesk(t *testing.T, manifests string, flags ...string) *desk {
	t.Helper()
	t.Parallel()
	d := &desk{T: t, Lab: lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1}), dir: t.TempDir()}
	d.socket = filepath.Join(d.dir, "control.sock")
	must(t, os.Mkdir(filepath.Join(d.dir, "manifests"), 0o700))
	d.write(manifests)
	d.program = d.another(append([]string{"--cluster-cidr", "10.244.0.0/16", "-v", "2"}, flags...)...)
	eventually(t, patience, func() error {
		var s view.Status
		if err := d.read(&s, "status", "-o", "json"); err != nil {
			return err
		}
		if s.Loop == nil || s.Loop.Last == nil {
			return errors.New("no sync yet")
		}
		return nil
	})
	return d
}

func (d *desk) write(manifests string) {
	d.Helper()
	must(d, os.WriteFile(filepath.Join(d.dir, "manifests", "all.yaml"), []byte(manifests), 0o600))
}

// runCommand runs a command on a host as an operator does, and returns its output and exit code.
func runCommand(t testing.TB, h *lab.Host, args ...string) (stdout string, code int) {
	t.Helper()
	cmd := h.Command(t.Context(), program, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String() + said.String(), cmd.ProcessState.ExitCode()
}

func (d *desk) command(args ...string) (text string, code int) {
	d.Helper()
	return runCommand(d.T, d.Node, append(args, "--control-socket", d.socket)...)
}

// read decodes a command's JSON output.
func (d *desk) read(into any, args ...string) error {
	text, code := d.command(args...)
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%v: exit code %d, %q: %w", args, code, text, err)
	}
	return nil
}

const deskNode = `apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: zone-a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
`

// deskService returns a Service with port 80, cluster IP 10.96.1.n, and other parts of its spec.
func deskService(n int, name, spec, status string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: default}
spec: {clusterIP: 10.96.1.%[1]d, clusterIPs: [10.96.1.%[1]d], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP, nodePort: %[5]d}], %[3]s}
status: {%[4]s}
`, n, name, spec, status, map[bool]int{true: 30000 + n}[strings.Contains(spec, "type:")])
}

// deskSlice returns an IPv4 slice of a Service.
func deskSlice(service, name, ports string, endpoints ...string) string {
	return fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [%s]
endpoints: [%s]
`, name, service, ports, strings.Join(endpoints, ", "))
}

const (
	deskPort  = "{name: http, port: 8080, protocol: TCP}"
	readyPod  = "{addresses: [10.244.0.10], nodeName: node-1, conditions: {ready: true}}"
	remotePod = "{addresses: [10.244.1.10], nodeName: node-2, conditions: {ready: true}}"
)

// TestServicesCommandNamesTheCause creates faulty Services, shows the fault by a packet, and expects the reason from the command.
func TestServicesCommandNamesTheCause(t *testing.T) {
	unready := strings.Replace(readyPod, "ready: true", "ready: false, serving: false", 1)
	situations := []struct {
		name, spec, status string
		slices             []string
		// from connects to to with the outcome. says is in the output of services default/name, code is its exit code.
		from, to string
		outcome  lab.Outcome
		says     string
		code     int
	}{
		{name: "works", slices: []string{deskSlice("works", "s1", deskPort, readyPod)}, from: "pod-1", to: "vip", outcome: lab.Answered,
			says: `\+ 10\.244\.0\.10:8080 +ready +on this node\n`},
		{name: "unready", slices: []string{deskSlice("unready", "s2", deskPort, unready)}, from: "pod-1", to: "vip", outcome: lab.Refused,
			says: `- 10\.244\.0\.10:8080 .*not ready \(the pod's readiness probe or a readiness gate says so\)`, code: 1},
		{name: "terminating", slices: []string{deskSlice("terminating", "s3", deskPort, remotePod, strings.Replace(readyPod, "ready: true", "ready: false, terminating: true", 1))},
			from: "pod-1", to: "vip", outcome: lab.Answered, says: `- 10\.244\.0\.10:8080 .*terminating \(other endpoints are ready\)`},
		{name: "target-port", slices: []string{deskSlice("target-port", "s4", "", readyPod)}, from: "pod-1", to: "vip", outcome: lab.Refused,
			says: "no container port of the pods matches the targetPort of the Service", code: 1},
		{name: "port-name", slices: []string{deskSlice("port-name", "s5", "{name: web, port: 8080, protocol: TCP}", readyPod)}, from: "pod-1", to: "vip",
			outcome: lab.Refused, says: `has a port named "http"/tcp; the slices have "web"/tcp`, code: 1},
		{name: "no-slice", from: "pod-1", to: "vip", outcome: lab.Refused, says: "there is no EndpointSlice of IPv4 for it: its selector matches no pod", code: 1},
		{name: "local", spec: "type: NodePort, externalTrafficPolicy: Local", slices: []string{deskSlice("local", "s7", deskPort, remotePod)}, from: "client", to: "nodeport",
			outcome: lab.TimedOut, says: `dropped: policy Local, and no endpoint on this node(.|\n)*not for policy Local: not on this node, but on node-2`},
		{name: "internal", spec: "internalTrafficPolicy: Local", slices: []string{deskSlice("internal", "s8", deskPort, remotePod)}, from: "pod-1", to: "vip",
			outcome: lab.TimedOut, says: `dropped: policy Local, and no endpoint on this node(.|\n)*policy Local: not on this node, but on node-2`},
		{name: "zone", slices: []string{deskSlice("zone", "s9", deskPort, readyPod[:len(readyPod)-1]+", hints: {forZones: [{name: zone-b}]}}",
			remotePod[:len(remotePod)-1]+", hints: {forZones: [{name: zone-a}]}}")}, from: "pod-1", to: "vip", outcome: lab.Answered,
			says: `- 10\.244\.0\.10:8080 .*hinted to other zones \(zone-b; this node is in zone-a\)`},
		{name: "sources", spec: "type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24]", status: "loadBalancer: {ingress: [{ip: 203.0.113.10}]}",
			slices: []string{deskSlice("sources", "s10", deskPort, readyPod)}, from: "client", to: "203.0.113.10", outcome: lab.TimedOut,
			says: `203\.0\.113\.10:80 .*\n.*allowed sources: 198\.51\.100\.0/24`},
		{name: "node-port", spec: "type: NodePort", slices: []string{deskSlice("node-port", "s11", deskPort, readyPod)}, from: "node", to: "127.0.0.1",
			outcome: lab.Refused, says: `NodePort +30011 on 192\.0\.2\.1 `},
		{name: "bad-address", slices: []string{deskSlice("bad-address", "s12", deskPort, "{addresses: [10.244.0.300]}")}, from: "pod-1", to: "vip", outcome: lab.Refused,
			says: `"10\.244\.0\.300": not an IP address`, code: 1},
		{name: "taken", spec: "externalIPs: [203.0.113.10]", slices: []string{deskSlice("taken", "s13", deskPort, readyPod)}, from: "pod-1", to: "vip", outcome: lab.Answered,
			says: `203\.0\.113\.10:80 .*\n +not programmed: already used by default/sources:http`, code: 1},
		{name: "algorithm", slices: []string{deskSlice("algorithm", "s14", deskPort, readyPod, remotePod, "{addresses: [10.244.1.11]}")}, from: "pod-1", to: "vip",
			outcome: lab.Answered, says: `source-hash/24\n(.|\n)*\+ 10\.244\.0\.10:8080 .* 74\.9 %\n.*\+ 10\.244\.1\.10:8080 .* 25\.1 %\n.*- 10\.244\.1\.11:8080 .*its weight is 0`},
	}
	manifests := deskNode
	for i, s := range situations {
		manifests += deskService(i+1, s.name, s.spec, s.status) + strings.Join(s.slices, "")
	}
	manifests = strings.Replace(manifests, "name: algorithm,", "name: algorithm, annotations: {kube-nftproxy.io/lb-algorithm: source-hash/24},", 1)
	manifests = strings.Replace(manifests, "name: s14,", `name: s14, annotations: {kube-nftproxy.io/weights: "10.244.0.10=3,10.244.1.11=0"},`, 1)
	d := newDesk(t, manifests)
	serve(t, inet.TCP, backendPort, d.Pods[0], d.Remotes[0])
	hosts := map[string]*lab.Host{"pod-1": d.Pods[1], "client": d.Client, "node": d.Node}
	for i, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			to := map[string]string{"vip": fmt.Sprintf("10.96.1.%d:80", i+1), "nodeport": fmt.Sprintf("192.0.2.1:%d", 30001+i),
				"127.0.0.1": fmt.Sprintf("127.0.0.1:%d", 30001+i)}[s.to]
			if to == "" {
				to = s.to + ":80"
			}
			if got := hosts[s.from].Probe(t.Context(), inet.TCP, netip.MustParseAddrPort(to), lab.Options{}); got.Outcome != s.outcome {
				t.Errorf("%s to %s: %v, want %v", s.from, to, got, s.outcome)
			}
			text, code := d.command("services", "default/"+s.name)
			if code != s.code || !regexp.MustCompile(s.says).MatchString(text) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, s.code, s.says, text)
			}
		})
	}
	t.Run("dropped packets are no connections", func(t *testing.T) {
		var v view.Services
		must(t, d.read(&v, "services", "default/local", "-o", "json"))
		m, err := d.program.Metrics(t.Context())
		must(t, err)
		for _, f := range v.Services[0].Ports[0].Frontends {
			metric := m[`kubenftproxy_service_refused_total{namespace="default",port="http",reason="no_local_endpoints",service="local"}`]
			if f.Kind == "NodePort" && (*f.Connections != 0 || f.Dropped == 0 || *f.Refused != f.Dropped || float64(f.Dropped) != metric) {
				t.Errorf("%d connections, %d refused, %d dropped of them; the metric of dropped packets is %v", *f.Connections, *f.Refused, f.Dropped, metric)
			}
		}
		if text, _ := d.command("services", "default/local"); !regexp.MustCompile(`NodePort +30007 .* 0 connections\n(.|\n)*connections: \d+ dropped`).MatchString(text) {
			t.Error(text)
		}
	})
	t.Run("list", func(t *testing.T) { d.testList() })
	t.Run("plan", func(t *testing.T) { d.testPlan(manifests) })
	t.Run("watch", func(t *testing.T) { d.testWatch(manifests) })
}

// testList checks the list of all Services.
func (d *desk) testList() {
	text, code := d.command("services", "--wrong")
	if code != 1 || strings.Contains(text, "default/works") || !strings.Contains(text, "default/unready") {
		d.Errorf("services --wrong: exit code %d:\n%s", code, text)
	}
	var all view.Services
	must(d, d.read(&all, "services", "-o", "json"))
	if len(all.Services) != 14 {
		d.Errorf("%d Services, want 14", len(all.Services))
	}
	for args, want := range map[string]int{"services": 0, "services default/nosuch": 2, "services -o xml": 2, "nosuch": 1, "verify": 0, "verify extra": 2} {
		if text, code := d.command(strings.Fields(args)...); code != want {
			d.Errorf("%s: exit code %d, want %d: %s", args, code, want, text)
		}
	}
	if text, code := runCommand(d.T, d.Node, "__complete", "services", "--control-socket", d.socket, "default/wo"); code != 0 || !strings.Contains(text, "default/works\n") {
		d.Errorf("completion: exit code %d: %q", code, text)
	}
}

// testPlan compares the tables with the manifests, and with other weights of a Service with an algorithm.
func (d *desk) testPlan(manifests string) {
	if text, code := d.command("diff", "-f", filepath.Join(d.dir, "manifests")); code != 0 {
		d.Errorf("diff of the same manifests: exit code %d: %s", code, text)
	}
	planned := filepath.Join(d.dir, "planned")
	other := strings.Replace(manifests, "10.244.0.10=3", "10.244.0.10=1", 1)
	must(d, errors.Join(os.Mkdir(planned, 0o700), os.WriteFile(filepath.Join(planned, "all.yaml"), []byte(other), 0o600)))
	// A quarter of the 251 slots moves to the other endpoint, and some more slots by the way.
	text, code := d.command("diff", "-f", planned)
	lost := regexp.MustCompile(`(?m)^- ip map endpoints: .* : 10\.244\.0\.10 \. 8080$`).FindAllString(text, -1)
	gained := regexp.MustCompile(`(?m)^\+ ip map endpoints: .* : 10\.244\.1\.10 \. 8080$`).FindAllString(text, -1)
	if code != 1 || len(lost) != len(gained) || len(lost) < 251/4 || len(lost) > 251/3 {
		d.Errorf("diff with other weights: exit code %d, %d slots lost, %d gained:\n%.2000s", code, len(lost), len(gained), text)
	}
	const rule = "jhash ip saddr & 255.255.255.0 mod 251 seed 0x6b6e7078 map @endpoints"
	if text, code := runCommand(d.T, d.Node, "render", "-f", planned, "--hostname-override", "node-1"); code != 0 || !strings.Contains(text, rule) {
		d.Errorf("render: exit code %d, want the rule %q in:\n%.2000s", code, rule, text)
	}
}

// testWatch follows a change.
func (d *desk) testWatch(manifests string) {
	ctx, cancel := context.WithCancel(d.Context())
	defer cancel()
	cmd := d.Node.Command(ctx, program, "watch", "-o", "json", "--control-socket", d.socket)
	out, err := cmd.StdoutPipe()
	must(d, err)
	must(d, cmd.Start())
	first := make(chan view.Commit, 1)
	go func() {
		var c view.Commit
		if json.NewDecoder(out).Decode(&c) == nil {
			first <- c
		}
	}()
	end := time.Now().Add(patience)
	for address := 20; ; address++ { // until it listens
		d.write(strings.Replace(manifests, "10.244.0.10]", fmt.Sprintf("10.244.0.%d]", address), 1))
		select {
		case c := <-first:
			if len(c.Services) != 1 || c.Services[0].Service != "default/works" || len(c.Services[0].Added) != 1 || c.Elements == 0 {
				d.Errorf("the first commit: %+v, want one endpoint of default/works replaced", c)
			}
			cancel()
			_ = cmd.Wait()
			return
		case <-time.After(200 * time.Millisecond):
			if time.Now().After(end) {
				d.Fatal("no commit was shown")
			}
		}
	}
}

// TestStatusCommandNamesTheCause breaks the node.
func TestStatusCommandNamesTheCause(t *testing.T) {
	d := newDesk(t, deskNode+deskService(1, "web", "type: NodePort", "")+deskSlice("web", "s1", deskPort, readyPod))
	serve(t, inet.TCP, backendPort, d.Pods[0])
	vip := netip.MustParseAddrPort("10.96.1.1:80")
	probe := func(want lab.Outcome) {
		t.Helper()
		eventually(t, patience, func() error {
			if got := d.Pods[1].Probe(t.Context(), inet.TCP, vip, lab.Options{}); got.Outcome != want {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
	}
	says := func(code int, patterns ...string) {
		t.Helper()
		eventually(t, patience, func() error {
			text, got := d.command("status", "-o", "wide")
			for _, p := range patterns {
				if got != code || !regexp.MustCompile(p).MatchString(text) {
					return fmt.Errorf("exit code %d, want %d, and %q in:\n%s", got, code, p, text)
				}
			}
			return nil
		})
	}
	probe(lab.Answered)
	says(0, "health +healthy\n", "repairs +none")

	nft(t, d.Node, "add table inet guard; add chain inet guard transit { type filter hook forward priority 0; policy drop; }")
	probe(lab.TimedOut)
	says(1, `WRONG table inet guard, chain transit drops all forwarded packets`, `fix: +on node node-1: nft add rule inet guard transit ct status dnat accept`)
	nft(t, d.Node, "add rule inet guard transit ct status dnat accept") // the fix
	probe(lab.Answered)
	says(0, "health +healthy\n")

	must(t, d.Node.Sysctl("ipv4/ip_forward", "0"))
	probe(lab.TimedOut)
	says(1, `WRONG this node does not forward IPv4 packets`, `sysctl -w net\.ipv4\.ip_forward=1`)
	must(t, d.Node.Sysctl("ipv4/ip_forward", "1"))

	nft(t, d.Node, "add table ip nat; add chain ip nat KUBE-SERVICES; add chain ip nat KUBE-SVC-AAAAAAAAAAAAAAAA")
	says(0, `WARNING a kube-proxy has left rules on this node: iptables-nft 2`)

	for range 3 {
		nft(t, d.Node, "flush ruleset")
		probe(lab.Answered)
	}
	says(0, `repairs +[1-9]\d* since the start`, `there is no table ip kube-nftproxy, ruleset last changed by nft`)
	if text, code := d.command("verify"); code != 0 || !strings.Contains(text, "OK: 2 tables") {
		t.Errorf("verify: exit code %d: %s", code, text)
	}

	serve(t, inet.TCP, 30001, d.Node)
	says(0, `WARNING on node node-1 a local process listens on 30001/TCP`, `reason: +NodePortTaken, Service default/web`)

	d.program.Kill()
	if text, code := d.command("status"); code != 2 || !strings.Contains(text, "kube-nftproxy does not run: no process answers at the socket") {
		t.Errorf("without the program: exit code %d: %s", code, text)
	}
}

// TestConsoleWithAnAPIServer stops the API server, and searches the archive for secrets.
func TestConsoleWithAnAPIServer(t *testing.T) {
	w := ownWorld(t, lab.Config{Pods: 1})
	socket := filepath.Join(w.dir, "control.sock")
	d := w.start("--control-socket", socket)
	d.awaitIdle(patience)
	s := service("web", corev1.IPv4Protocol)
	w.apply(s)
	w.apply(slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	eventually(t, patience, func() error {
		text, code := runCommand(t, w.Node, "services", "default/web", "--control-socket", socket)
		if code != 0 || !strings.Contains(text, "+ "+w.Pods[0].IPv4.String()) {
			return fmt.Errorf("exit code %d: %s", code, text)
		}
		return nil
	})
	text, _ := runCommand(t, w.Node, "status", "--control-socket", socket)
	if !regexp.MustCompile(`API server +https://\S+, last change received .* ago, answers in`).MatchString(text) {
		t.Errorf("status with an API server:\n%s", text)
	}

	file := filepath.Join(w.dir, "bundle.tar.gz")
	if text, code := runCommand(t, w.Node, "bundle", "-f", file, "--control-socket", socket); code != 0 {
		t.Fatalf("bundle: exit code %d: %s", code, text)
	}
	checkBundle(t, file, w.kubeconfig())

	w.api.KillServer()
	eventually(t, patience, func() error {
		text, code := runCommand(t, w.Node, "status", "--control-socket", socket)
		if code != 1 || !regexp.MustCompile(`API server .*does not answer: .*connect: connection refused`).MatchString(text) ||
			!regexp.MustCompile(`health +unhealthy: the API server does not answer: (.|\n)*WRONG the API server does not answer: (.|\n)*reason: +APIServerUnreachable, `).MatchString(text) {
			return fmt.Errorf("without the API server: exit code %d:\n%s", code, text)
		}
		return nil
	})
	status := func(code int, patterns ...string) {
		t.Helper()
		eventually(t, patience, func() error {
			text, got := runCommand(t, w.Node, "status", "--control-socket", socket)
			return fits(text, got, code, patterns)
		})
	}
	status(1, `API server .*has not answered for \d\S*: .*connection refused\n`, "impact: +the rules stay as they are and keep serving", "fix: +none on this node, if the control plane is down")

	// A restart during the outage. The rules of the previous process serve, and no command denies it.
	d.Kill()
	w.start("--control-socket", socket)
	status(1, `loop +this process has programmed nothing yet: waiting`, "impact: +the rules of the previous process keep serving, without changes",
		"fix: +if the control plane is down, none on this node. Otherwise, correct the address")
	for _, c := range []struct {
		command, says string
		code          int
	}{
		{"services", "NOT READ YET .*: this output is incomplete, and does not describe the rules in the kernel; kube-nftproxy status shows the reason\n\n$", 0},
		{"services --wrong", "NOT READ YET", 1},
		{"services 10.96.0.99", "cannot know whether a Service has 10.96.0.99: it has not read .* yet", 2},
		{"services default/web", "cannot describe Service default/web: it has not read .* yet", 2},
		{"verify", "there is no plan yet: the program waits to read all Services", 2},
		{"diff", "the program has not read .* yet", 2},
		{"preflight", "service CIDRs +unknown: set --service-cidrs", 0},
	} {
		text, code := runCommand(t, w.Node, append(strings.Fields(c.command), "--control-socket", socket)...)
		lab.Check(t, fits(text, code, c.code, []string{c.says}), "%s", c.command)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, w.api.RestartServer(ctx))
	status(0, "health +healthy\n", "API server .*answers in", "No problem found on this node")
	if text, _ := runCommand(t, w.Node, "status", "--control-socket", socket); regexp.MustCompile("failed|has not answered").MatchString(text) {
		t.Errorf("after the outage:\n%s", text)
	}
}

// checkBundle checks the content of an archive, and searches it for the secrets of a kubeconfig.
func checkBundle(t *testing.T, file, kubeconfig string) {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		files[strings.TrimPrefix(h.Name, "kube-nftproxy/")] = string(content)
	}
	for name, want := range map[string]string{
		"status.txt": "health", "services.txt": "Service default/web", "verify.txt": "OK: 2 tables", "config.yaml": "detectLocalMode", "flags.txt": "--hostname-override=",
		"metrics.txt": "kubeproxy_sync_proxy_rules_duration_seconds_bucket", "tables.nft": "default/web:tcp", "versions.txt": "kernel ",
		"sysctls.txt": "net/ipv4/ip_forward = 1", "goroutines.txt": "goroutine profile", "problems.json": "", "preflight.txt": "kernel", "routes.txt": "route ",
		"other-tables.txt": "", "log.txt": "kubectl -n NAMESPACE logs POD", "status.json": `"healthy": true`,
	} {
		if content, ok := files[name]; !ok || !strings.Contains(content, want) || strings.Contains(content, "not available: ") {
			t.Errorf("file %s (there: %v) lacks %q:\n%.300s", name, ok, want, content)
		}
	}
	text := mustRead(t, kubeconfig)
	secrets := regexp.MustCompile(`(?:token|password|-data)"?: *"?([A-Za-z0-9+/=._-]{12,})`).FindAllStringSubmatch(text, -1)
	if len(secrets) == 0 {
		t.Fatalf("no secrets in the kubeconfig:\n%s", text)
	}
	for _, s := range secrets {
		for name, content := range files {
			if strings.Contains(content, s[1]) {
				t.Errorf("file %s holds a secret of the kubeconfig", name)
			}
		}
	}
}
