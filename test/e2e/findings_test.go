//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// finds waits until status has exactly these findings besides notes, as severity and reason. The health, the exit code, the text and the findings
// must agree, and each finding must be complete.
func (d *desk) finds(want ...string) (last view.Status) {
	d.Helper()
	slices.Sort(want)
	eventually(d.T, patience, func() error {
		text, code := d.command("status", "-o", "json")
		var s view.Status
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return fmt.Errorf("exit code %d, %s: %w", code, text, err)
		}
		var got []string
		wrong := false
		for _, f := range s.Findings {
			if f.Reason == "" || f.Object == "" || f.What == "" || f.Impact == "" || f.Fix == "" || f.Affects == "" {
				d.Errorf("a finding lacks a field: %+v", f)
			}
			if f.Severity != view.Note {
				got = append(got, string(f.Severity)+" "+string(f.Reason))
			}
			wrong = wrong || f.Severity == view.Wrong
		}
		if s.Healthy == wrong || (code == 1) != wrong || s.SchemaVersion != view.SchemaVersion {
			d.Errorf("healthy is %v, exit code %d, schema version %d, findings %q", s.Healthy, code, s.SchemaVersion, got)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("findings %q, want %q in:\n%s", got, want, text)
		}
		last = s
		return nil
	})
	text, _ := d.command("status")
	for _, f := range last.Findings {
		if f.Severity != view.Note && !strings.Contains(text, f.What) {
			d.Errorf("the text lacks %q:\n%s", f.What, text)
		}
	}
	return last
}

// again restarts the program with other flags.
func (d *desk) again(flags ...string) {
	d.Helper()
	d.program.Kill()
	d.program = d.another(flags...)
}

// another starts an instance of the program that reads the same folder.
func (d *desk) another(flags ...string) *proxy.Program {
	d.Helper()
	return proxy.ForTest(d.T, proxy.Config{Host: d.Node, Path: program, Args: append([]string{
		"--manifests", filepath.Join(d.dir, "manifests"), "--hostname-override", nodeName, "--proxy-mode", "nftables", "--control-socket", d.socket,
	}, flags...)})
}

// TestFindings breaks a node in many ways. Status has one finding for each, and none after the repair.
func TestFindings(t *testing.T) {
	web := deskService(1, "web", "", "") + deskSlice("web", "s1", deskPort, readyPod)
	d := newDesk(t, deskNode+web)
	serve(t, inet.TCP, backendPort, d.Pods[0])
	sub := func(name string, f func(d *desk)) {
		t.Run(name, func(t *testing.T) {
			of := *d
			of.T = t
			f(&of)
			d.program = of.program
		})
	}
	sub("IPv6 without a use", func(d *desk) {
		must(d, d.Node.Sysctl("ipv6/conf/all/forwarding", "0"))
		d.finds()
		d.write(deskNode + web + strings.NewReplacer("10.96.1.2", `"fd00:10:96::2"`, "IPv4", "IPv6").Replace(deskService(2, "six", "", "")))
		if f := d.finds("wrong ForwardingDisabled", "warning ClusterCIDRMissing").Findings[0]; !strings.Contains(f.What, "IPv6") || f.Fix != "on node node-1: sysctl -w net.ipv6.conf.all.forwarding=1" {
			d.Errorf("%+v", f)
		}
		d.write(deskNode + web)
		d.finds()
	})
	sub("a network inside of a ServiceCIDR", func(d *desk) {
		d.write(deskNode + web + "---\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: c}, spec: {cidrs: [10.96.0.0/16]}}\n")
		d.testOverlap()
		d.write(deskNode + web)
	})
	sub("a firewall", (*desk).testFirewall)
	sub("manifests", func(d *desk) {
		broken := filepath.Join(d.dir, "manifests", "z.yaml")
		must(d, os.WriteFile(broken, []byte("kind: [\n"), 0o600))
		if f := d.finds("wrong ManifestRejected").Findings[0]; f.Object != "File "+broken {
			d.Errorf("%+v", f)
		}
		must(d, os.Remove(broken))
		d.finds()
	})
	sub("objects", func(d *desk) {
		d.write(deskNode + web + deskService(3, "bad", `externalIPs: ["no address"]`, "") + deskService(4, "one", "externalIPs: [203.0.113.10]", "") +
			deskService(5, "two", "externalIPs: [203.0.113.10]", ""))
		s := d.finds("warning ObjectRejected", "warning AddressConflict")
		for _, f := range s.Findings {
			if f.Reason == view.ObjectRejected && f.Object != "Service default/bad" || f.Reason == view.AddressConflict && f.Object != "Service default/two" {
				d.Errorf("%+v", f)
			}
		}
		if text, code := d.command("services", "--wrong"); code != 1 || strings.Contains(text, "default/web") {
			d.Errorf("services --wrong: exit code %d:\n%s", code, text)
		}
		// With policy Local, a node without an endpoint is normal.
		d.write(deskNode + web + deskService(6, "local", "type: NodePort, externalTrafficPolicy: Local", "") + deskSlice("local", "s6", deskPort, remotePod))
		d.finds()
		if text, code := d.command("services", "--wrong"); code != 0 {
			d.Errorf("services --wrong: exit code %d:\n%s", code, text)
		}
		d.write(deskNode + web)
	})
	sub("a monitor", func(d *desk) {
		ctx, cancel := context.WithCancel(d.Context())
		defer cancel()
		cmd := d.Node.Command(ctx, "nft", "monitor")
		must(d, cmd.Start())
		if f := d.finds("warning SlowCommits").Findings[0]; !strings.Contains(f.What, "nft (pid ") {
			d.Errorf("%+v", f)
		}
		cancel()
		_ = cmd.Wait()
		d.finds()
	})
	sub("flows", (*desk).testFlows)
	sub("cleanup", (*desk).testCleanup)
	sub("an older instance", func(d *desk) {
		newer := d.another("--cluster-cidr", "10.244.0.0/16", "--healthz-bind-address", "", "--metrics-bind-address", "")
		older := fmt.Sprintf("an older instance stands by on this node: kube-nftproxy, pid %d", d.program.Pid())
		if f := d.finds("warning OlderInstance").Findings[0]; f.What != older {
			d.Errorf("%q, want %q", f.What, older)
		}
		newer.Kill()
	})
	sub("the Node", func(d *desk) {
		d.again("--cluster-cidr", "10.244.0.0/16", "--hostname-override", "node-9")
		f := d.finds("wrong NodeMissing").Findings[0]
		if f.What != `there is no Node "node-9" in the manifests, only Node node-1` || f.Fix != "set --hostname-override to the name of this machine in the manifests (node-1)" ||
			!strings.Contains(f.Impact, "Node ports are served on all addresses of this node: 192.0.2.1") {
			d.Errorf("%+v", f)
		}
		d.again("--cluster-cidr", "10.244.0.0/16")
		d.finds()
		d.write(strings.Replace(deskNode, "InternalIP, address: 192.0.2.1", "Hostname, address: node-1", 1) + web)
		d.again("--cluster-cidr", "10.244.0.0/16") // a running program keeps the last known address
		if f := d.finds("warning NodeAddressUnknown").Findings[0]; !strings.Contains(f.What, "has no InternalIP and no ExternalIP of IPv4, so node ports are served on all addresses of this node: 192.0.2.1") {
			d.Errorf("%+v", f)
		}
		d.write(deskNode + web)
		d.finds()
	})
	sub("ports and clusterCIDR", func(d *desk) {
		d.program.Kill()
		free := take(d, d.Node, "0.0.0.0:10256")
		d.again()
		f := d.finds("wrong PortNotBound", "warning ClusterCIDRMissing", "warning KubeProxyUnknown").Findings[0]
		if f.What != "the program cannot listen at 0.0.0.0:10256 for healthz: address already in use" || !strings.Contains(f.Fix, "ss -ltnp sport = :10256") {
			d.Errorf("%+v", f)
		}
		free()
		d.finds("warning ClusterCIDRMissing")
	})
}

// testOverlap routes a network inside of a ServiceCIDR. preflight knows the Node and its ServiceCIDRs from the running program.
func (d *desk) testOverlap() {
	ip := func(command string) {
		d.Helper()
		if out, err := d.Node.Command(d.Context(), "ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			d.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	const what = "networks have addresses of the ServiceCIDR 10.96.0.0/16: 10.96.7.0/24 by eth0"
	ip("route add 10.96.7.0/24 dev eth0")
	ip("route add 10.96.1.1/32 dev eth0") // the cluster IP of a Service
	if f := d.finds("warning ServiceCIDROverlap").Findings[0]; f.What != what || f.Object != "ServiceCIDR 10.96.0.0/16" {
		d.Errorf("%+v", f)
	}
	text, _ := d.command("preflight")
	if err := fits(text, 0, 0, []string{`service CIDRs +10\.96\.0\.0/16, checked for mode nftables`, `on node node-1: `, `addresses of the ServiceCIDR 10\.96\.0\.0/16: .*10\.96\.7\.0/24 by eth0`}); err != nil {
		d.Error(err)
	}
	ip("route delete 10.96.7.0/24")
	ip("route delete 10.96.1.1/32")
	d.finds()
}

// testFirewall runs the fix of a chain that drops forwarded packets: packets to Services pass, others do not.
func (d *desk) testFirewall() {
	vip, pod := netip.MustParseAddrPort("10.96.1.1:80"), netip.AddrPortFrom(d.Pods[0].IPv4, backendPort)
	nft(d.T, d.Node, "add table inet guard; add chain inet guard transit { type filter hook forward priority 0; policy drop; }")
	probe := func(to netip.AddrPort, want lab.Outcome) {
		d.Helper()
		if got := d.Pods[1].Probe(d.Context(), inet.TCP, to, lab.Options{}); got.Outcome != want {
			d.Errorf("to %s: %v, want %v", to, got, want)
		}
	}
	probe(vip, lab.TimedOut)
	fix := d.finds("wrong ForwardPolicyDrop").Findings[0].Fix
	command, found := strings.CutPrefix(fix, "on node node-1: ")
	if !found {
		d.Errorf("the fix does not name the node: %s", fix)
	}
	if out, err := d.Node.Command(d.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		d.Fatalf("%s: %v: %s", command, err, out)
	}
	probe(vip, lab.Answered)
	probe(pod, lab.TimedOut)
	d.finds()
	nft(d.T, d.Node, "delete table inet guard")
}

// testFlows adds an entry of a UDP flow to a removed endpoint, and removes the endpoint of a TCP connection.
func (d *desk) testFlows() {
	const echoPort = "{name: http, port: 9000, protocol: TCP}"
	text := deskNode + strings.ReplaceAll(deskService(1, "web", "", ""), "TCP", "UDP") + strings.ReplaceAll(deskSlice("web", "s1", deskPort, readyPod), "TCP", "UDP") +
		deskService(2, "tcp", "", "") + deskSlice("tcp", "s2", echoPort, readyPod)
	d.write(text)
	serveEcho(d, 9000, d.Pods[0])
	eventually(d.T, patience, func() error { // a connection before the sync would wait for minutes
		if services := nft(d.T, d.Node, "list map ip kube-nftproxy singles"); !strings.Contains(services, "10.96.1.2 . tcp . 80") {
			return errors.New(services)
		}
		return nil
	})
	conn, err := d.Pods[1].Dial(d.Context(), inet.TCP, netip.MustParseAddrPort("10.96.1.2:80"))
	must(d, err)
	defer conn.Close() //nolint:errcheck // unused from here on
	verify := func(code int, patterns ...string) {
		d.Helper()
		text, got := d.command("verify", "--flows", "-o", "wide")
		if err := fits(text, got, code, patterns); err != nil {
			d.Error(err)
		}
	}
	verify(0, `OK: of \d+ entr(?:y|ies) of connection tracking, 0 are stale, and 0 lead to removed endpoints`)
	d.write(strings.Replace(text, deskSlice("tcp", "s2", echoPort, readyPod), deskSlice("tcp", "s2", echoPort, remotePod), 1))
	eventually(d.T, patience, func() error {
		if services, _ := d.command("services", "default/tcp"); !strings.Contains(services, "+ 10.244.1.10:9000") {
			return errors.New(services)
		}
		return nil
	})
	verify(0, `REMOVED ENDPOINT default/tcp:http, tcp: 10\.244\.0\.11:\d+ -> 10\.96\.1\.2:80, to 10\.244\.0\.10:9000`, `NOTE 1 established TCP connection leads`)
	entry := "-p udp -s 10.244.0.11 -d 10.96.1.1 --sport 5555 --dport 80"
	d.conntrack("-I " + entry + " -r 10.244.0.99 -q 10.244.0.11 --reply-port-src 8080 --reply-port-dst 5555 -t 600 -u SEEN_REPLY")
	verify(1, `STALE default/web:http, udp: 10\.244\.0\.11:5555 -> 10\.96\.1\.1:80, to 10\.244\.0\.99:8080`, `WRONG 1 entry of connection tracking contradicts`,
		`fix: +on node node-1, for one flow: conntrack -D `+regexp.QuoteMeta(entry))
	d.conntrack("-D " + entry)
	verify(0, `OK: of \d+ entr(?:y|ies) of connection tracking, 0 are stale`)

	// With termination, the next segment of the connection gets a reset after its endpoint has left again.
	text = strings.Replace(text, "{name: tcp,", `{name: tcp, annotations: {kube-nftproxy.io/terminate-connections: gone},`, 1)
	d.write(text)
	d.await("services", "default/tcp", "TCP connections to endpoints that leave")
	d.write(strings.Replace(text, deskSlice("tcp", "s2", echoPort, readyPod), deskSlice("tcp", "s2", echoPort, remotePod), 1))
	d.await("verify", "--flows", "0 are stale, and 0 lead to removed endpoints")
	must(d, conn.SetDeadline(time.Now().Add(patience)))
	if _, err = fmt.Fprintln(conn, "after minutes"); err == nil { // a segment that keeps the connection alive may be the first one
		_, err = io.ReadAll(conn)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		d.Errorf("the terminated connection: %v, want a reset", err)
	}
	const metric = `kubenftproxy_terminated_connections_total{ip_family="IPv4"}`
	if m, err := d.program.Metrics(d.Context()); err != nil || m[metric] != 1 {
		d.Errorf("%s is %v, want 1; %v", metric, m[metric], err)
	}
}

func (d *desk) conntrack(args string) {
	d.Helper()
	if out, err := d.Node.Command(d.Context(), "conntrack", strings.Fields(args)...).CombinedOutput(); err != nil {
		d.Fatalf("conntrack %s: %v\n%s", args, err, out)
	}
}

// testCleanup runs --cleanup beside the running program.
func (d *desk) testCleanup() {
	handles := func() string { return nft(d.T, d.Node, "-a", "list", "table", "ip", "kube-nftproxy") }
	before := regexp.MustCompile(`(?m)^table .*handle \d+`).FindString(handles())
	text, code := runCommand(d.T, d.Node, "--cleanup")
	if want := fmt.Sprintf("kube-nftproxy runs on this node (kube-nftproxy, pid %d)", d.program.Pid()); code != 1 || !strings.Contains(text, want) || !strings.Contains(text, "--force") {
		d.Errorf("--cleanup: exit code %d, want 1, and %q in:\n%s", code, want, text)
	}
	if after := regexp.MustCompile(`(?m)^table .*handle \d+`).FindString(handles()); after != before || after == "" {
		d.Errorf("--cleanup beside the running program: the table was %q and is %q", before, after)
	}
	if text, code := runCommand(d.T, d.Node, "--cleanup", "--force"); code != 0 || !strings.Contains(text, "Removed the rules of kube-nftproxy") {
		d.Errorf("--cleanup --force: exit code %d:\n%s", code, text)
	}
	d.await("status", "there is no table ip kube-nftproxy, ruleset last changed by kube-nftproxy")
}

// firewalld has the base chains of firewalld for packets to the node and through it, with its rules that precede the zones and follow them.
const firewalld = `table inet firewalld {
 chain filter_INPUT {
  type filter hook input priority filter + 10; policy accept;
  ct state { established, related } accept
  ct status dnat accept
  iifname "lo" accept
  ct state invalid drop
  reject with icmpx admin-prohibited
 }
 chain filter_FORWARD {
  type filter hook forward priority filter + 10; policy accept;
  ct state { established, related } accept
  ct status dnat accept
  iifname "lo" accept
  ct state invalid drop
  reject with icmpx admin-prohibited
 }
}`

// TestPreflight checks nodes on which the program does not run.
func TestPreflight(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	check := func(name string, code int, want ...string) {
		t.Helper()
		text, got := runCommand(t, l.Node, "preflight", "-o", "json", "--root", root, "--hostname-override", "node-1")
		var v view.Preflight
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%s: exit code %d, %s: %v", name, got, text, err)
		}
		var reasons []string
		for _, f := range v.Findings {
			if f.Severity != view.Note {
				reasons = append(reasons, string(f.Reason))
			}
		}
		slices.Sort(reasons)
		if got != code || v.Ready != (code == 0) || !slices.Equal(reasons, want) || v.SchemaVersion != view.SchemaVersion {
			t.Errorf("%s: exit code %d, want %d; findings %q, want %q:\n%s", name, got, code, reasons, want, text)
		}
	}
	says := func(format string, patterns ...string) {
		t.Helper()
		text, code := runCommand(t, l.Node, "preflight", "-o", format, "--root", root, "--hostname-override", "node-1")
		if err := fits(text, code, code, patterns); err != nil {
			t.Error(err)
		}
	}
	check("no pod network", 0, "NetworkNotFound")
	write("etc/cni/net.d/10-flannel.conflist", `{"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}`)
	before := nft(t, l.Node, "list", "ruleset")
	check("a good node", 0)
	says("table", `kernel +\d`, `features +all for IPv4 and IPv6`, `service CIDRs +unknown: set --service-cidrs`, `node +0 problems of`, `old proxy +no kube-proxy runs\n`, `ports +10249 and 10256 are free`, `pod network +cbr0 \(flannel, portmap\)`,
		`firewalls +neither firewalld nor ufw nor Docker`, `No problem found: node node-1 is ready for kube-nftproxy\.`)
	if after := nft(t, l.Node, "list", "ruleset"); after != before {
		t.Errorf("preflight changed the ruleset:\n%s\nbefore:\n%s", after, before)
	}
	nft(t, l.Node, firewalld)
	check("firewalld", 0)
	says("wide", `firewalls +firewalld\n`, `NOTE firewalld has rules on this node`, `fix: +in the firewall.s chain for packets to this node, accept TCP port 10256 and the health check node ports`, `reason: +FirewallFound, Node node-1`)
	nft(t, l.Node, "delete table inet firewalld")
	says("table", `firewalls +neither firewalld nor ufw nor Docker`)
	var other net.Listener
	must(t, l.Node.Do(func() (err error) { other, err = net.Listen("tcp", "127.0.0.1:10249"); return err }))
	go func() { // it closes each connection
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	must(t, l.Node.Sysctl("ipv4/ip_forward", "0"))
	nft(t, l.Node, "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }; add chain ip filter DOCKER-USER; "+
		"add rule ip filter FORWARD jump DOCKER-USER; add table ip nat; add chain ip nat KUBE-SERVICES")
	check("a bad node", 1, "ForwardPolicyDrop", "ForwardingDisabled", "PortInUse")
	says("table", `old proxy +no kube-proxy runs; its rules: iptables-nft 1`, `ports +in use: 127\.0\.0\.1:10249`, `firewalls +Docker`,
		`fix: +on node node-1: iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT`, `or until Docker loads its rules again`)
	write("etc/cni/net.d/05-cilium.conflist", `{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}`)
	write("etc/ufw/ufw.conf", "ENABLED=yes\n")
	check("Cilium", 1, "ForwardPolicyDrop", "ForwardingDisabled", "NetworkServesServices", "PortInUse")
	says("table", `firewalls +ufw, Docker`)
	if text, code := runCommand(t, l.Node, "preflight", "extra"); code != 2 {
		t.Errorf("wrong usage: exit code %d: %s", code, text)
	}
}
