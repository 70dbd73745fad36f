//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestNoFileDescriptorsLeft removes all file descriptors while the program runs: changes are programmed and repairs made, the log
// names the cause, and health requests get no answer until there are descriptors again.
func TestNoFileDescriptorsLeft(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 3})
	w.serve(w.Pods[:2]...)
	w.apply(service("web"), slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	ip := w.clusterIPs("web")[0]
	d := w.start("--nodeport-addresses", "192.0.2.0/24,198.51.100.0/24")
	reach(t, w.Pods[2], ip, "pod-0")
	d.awaitIdle(patience)

	release := d.limitFiles(3)
	silent := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if status, _, err := d.Get(ctx, "http://192.0.2.1:10256/healthz"); err == nil {
			return fmt.Errorf("/healthz answers %d", status)
		}
		return nil
	}
	if err := silent(); err != nil {
		t.Errorf("without file descriptors %v", err)
	}
	w.apply(slice("web", "web-1", endpoint(w.Pods[1].IPv4)))
	reach(t, w.Pods[2], ip, "pod-1")
	nft(t, w.Node, "flush ruleset")
	reach(t, w.Pods[2], ip, "pod-1")
	// The node's addresses cannot be read.
	w.addresses(netlink.AddrAdd, []netip.AddrPort{netip.MustParseAddrPort("198.51.100.5:1")})
	d.awaitLine("too many open files", "node ip address")
	w.apply(slice("web", "web-1", endpoint(w.Pods[0].IPv4)))
	reach(t, w.Pods[2], ip, "pod-0")
	release()
	eventually(t, patience, func() error { return answer(d, "healthz", http.StatusOK) })
	eventually(t, patience, func() error {
		if list := nft(t, w.Node, "list set ip kube-nftproxy node-addresses"); !strings.Contains(list, "198.51.100.5") {
			return fmt.Errorf("an address from meanwhile isn't there:\n%s", list)
		}
		return nil
	})
	w.apply(slice("web", "web-1", endpoint(w.Pods[1].IPv4)))
	reach(t, w.Pods[2], ip, "pod-1")
}

// checkedService is a Service with a health check node port.
const checkedService = `---
apiVersion: v1
kind: Service
metadata: {namespace: %s, name: %s}
spec:
  {type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: %s, clusterIPs: [%[3]s], ipFamilies: [IPv4], healthCheckNodePort: %[4]d, ports: [{port: 80}]}
`

// TestTenantsDoNotUseUpFileDescriptors: Services of many namespaces have more health check node ports than the program
// may open files. The program reports those that it cannot serve, and everything else works: /healthz, the control
// socket, changes of manifests, the health check of an older Service. When the Services are deleted, others get
// descriptors.
func TestTenantsDoNotUseUpFileDescriptors(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	write := func(file, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(s.dir, "manifests", file), []byte(text), 0o600))
	}
	write("bank.yaml", fmt.Sprintf(checkedService, "bank", "web", "10.96.1.1", 31000))
	d := s.startBy("", []string{"prlimit", "--nofile=256"})
	served := func(port int) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := d.Get(ctx, fmt.Sprintf("http://192.0.2.1:%d/", port))
		return err
	}
	eventually(t, patience, func() error { return served(31000) })
	var tenants strings.Builder
	const services = 400
	for i := range services {
		fmt.Fprintf(&tenants, checkedService, fmt.Sprint("evil-", i/4), fmt.Sprint("web-", i), fmt.Sprintf("10.96.%d.%d", 2+i/200, 1+i%200), 31001+i)
	}
	write("evil.yaml", tenants.String())
	failed := func(want float64) error {
		m, err := d.scrape()
		if n := m["kubenftproxy_health_check_ports_failed"]; err == nil && n != want {
			err = fmt.Errorf("%v failed ports, want %v", n, want)
		}
		return err
	}
	eventually(t, patience, func() error { return failed(services + 1 - 128) })
	d.awaitLine("file descriptors of this program")
	must(t, answer(d, "healthz", http.StatusOK))
	must(t, served(31000))
	s.serveBy(s.Pods[1])
	eventually(t, patience, func() error { return reached(t.Context(), s.Pods[0], inet.TCP, webIP, "pod-1") })
	out, err := exec.CommandContext(t.Context(), program, "status", "--control-socket", filepath.Join(s.dir, "control.sock")).CombinedOutput()
	if !strings.Contains(string(out), "HealthCheckPortTaken") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if lines := d.lines("too many open files"); len(lines) > 0 {
		t.Errorf("%d log lines, the first one is %s", len(lines), lines[0])
	}
	must(t, os.Remove(filepath.Join(s.dir, "manifests", "evil.yaml")))
	write("shop.yaml", fmt.Sprintf(checkedService, "shop", "web", "10.96.1.2", 31999))
	eventually(t, patience, func() error { return served(31999) })
	eventually(t, patience, func() error { return failed(0) })
}

// limitFiles sets the limit of file descriptors, and returns a function that resets it.
func (d *daemon) limitFiles(most uint64) (release func()) {
	d.t.Helper()
	var before unix.Rlimit
	must(d.t, unix.Prlimit(d.Pid(), unix.RLIMIT_NOFILE, nil, &before))
	must(d.t, unix.Prlimit(d.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}, nil))
	return func() {
		must(d.t, unix.Prlimit(d.Pid(), unix.RLIMIT_NOFILE, &before, nil))
	}
}

// still is a node served from a folder of manifests.
type still struct {
	*testing.T
	*lab.Lab
	dir string
}

const stillService = `apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: tcp, protocol: TCP, port: 8080}]
endpoints: [{addresses: ["%s"], nodeName: node-1, conditions: {ready: true}}]
`

func newStill(t *testing.T, c lab.Config) *still {
	t.Helper()
	s := &still{T: t, Lab: lab.ForTest(t, c), dir: t.TempDir()}
	must(t, os.Mkdir(filepath.Join(s.dir, "manifests"), 0o700))
	serve(t, inet.TCP, backendPort, s.Pods...)
	s.serveBy(s.Pods[0])
	return s
}

// serveBy makes a pod the Service's only endpoint.
func (s *still) serveBy(h *lab.Host) {
	s.Helper()
	file := filepath.Join(s.dir, "manifests", "all.yaml")
	must(s, os.WriteFile(file+".new", fmt.Appendf(nil, stillService, h.IPv4), 0o600))
	must(s, os.Rename(file+".new", file))
}

// startBy starts the program through another one, unless by is empty. Without a log, it logs into a folder of the test.
func (s *still) startBy(log string, by []string, flags ...string) *daemon {
	s.Helper()
	args := append(by, append([]string{program, "--manifests", filepath.Join(s.dir, "manifests"), "--hostname-override", nodeName,
		"--control-socket", filepath.Join(s.dir, "control.sock"), "-v", "2"}, flags...)...)
	return run(s.T, proxy.Config{Host: s.Node, Path: args[0], Args: args[1:], Log: log})
}

var webIP = netip.MustParseAddrPort("10.96.0.10:80")

// TestFewFileDescriptorsAtTheStart: with any number of descriptors the program either serves, or exits with a reason. It neither
// hangs nor damages existing rules.
func TestFewFileDescriptorsAtTheStart(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	first := s.startBy("", nil)
	eventually(t, patience, func() error { return reached(t.Context(), s.Pods[1], inet.TCP, webIP, "pod-0") })
	first.Kill()
	served, ended := 0, 0
	for n := 4; n < 40; n += 4 {
		d := s.startBy("", []string{"prlimit", "--nofile=" + strconv.Itoa(n)})
		eventually(t, patience, func() error {
			if d.Exited() {
				ended++
				return nil
			}
			if len(d.lines(`"Synced"`)) == 0 {
				return fmt.Errorf("with %d file descriptors it neither serves nor ends: %s", n, d.LogTail(5))
			}
			served++
			return nil
		})
		// The second text is from Go's runtime, before any log line.
		if said := d.read(); d.Exited() && !strings.Contains(said, "too many open files") && !strings.Contains(said, "epollcreate failed with 24") {
			t.Errorf("with %d file descriptors it exits, and logs only %s", n, said)
		}
		d.Kill()
		lab.Check(t, reached(t.Context(), s.Pods[1], inet.TCP, webIP, "pod-0"), "with %d file descriptors", n)
	}
	t.Logf("%d starts served, %d ended", served, ended)
	if served == 0 || ended == 0 {
		t.Errorf("%d starts served, %d ended: want some of both", served, ended)
	}
}

// TestNothingCanBeWritten has the log on a full disk and no folder for the control socket: the program serves.
func TestNothingCanBeWritten(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	d := s.startBy("/dev/full", nil, "--control-socket", "/proc/nowhere/control.sock")
	eventually(t, patience, func() error { return reached(t.Context(), s.Pods[1], inet.TCP, webIP, "pod-0") })
	s.serveBy(s.Pods[1])
	eventually(t, patience, func() error { return reached(t.Context(), s.Pods[0], inet.TCP, webIP, "pod-1") })
	m := d.awaitIdle(patience)
	lab.Same(t, 0, m[`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"}`], "syncs failed")
}

// TestDevicesAreAddedAndRemoved: a CNI plugin continuously creates devices with addresses, renames and deletes them, far more at once than
// the kernel queues for a slow reader. Permanent addresses serve node ports, no sync fails, and finally the set of addresses is
// that of the node.
func TestDevicesAreAddedAndRemoved(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	d := s.startBy("", nil, "--nodeport-addresses", "192.0.2.0/24,198.51.0.0/16")
	at := netip.MustParseAddrPort("192.0.2.1:30080")
	eventually(t, patience, func() error { return reached(t.Context(), s.Client, inet.TCP, at, "pod-0") })
	const rounds, devices = 3, 150
	for round := range rounds {
		err := s.Node.Do(func() error { return churn(devices, round) })
		must(t, err)
		for _, to := range []netip.AddrPort{at, netip.AddrPortFrom(churned(round, 0), 30080)} {
			eventually(t, patience, func() error { return reached(t.Context(), s.Client, inet.TCP, to, "pod-0") })
		}
	}
	want := []string{"192.0.2.1"}
	for round := range rounds {
		want = append(want, churned(round, 0).String())
	}
	eventually(t, patience, func() error {
		list := nft(t, s.Node, "list set ip kube-nftproxy node-addresses")
		_, elements, _ := strings.Cut(list, "elements = {")
		if n := strings.Count(elements, ",") + 1; n != len(want) {
			return fmt.Errorf("%d addresses, want %q:\n%s", n, want, list)
		}
		for _, addr := range want {
			if !strings.Contains(elements, addr) {
				return fmt.Errorf("%s is missing:\n%s", addr, list)
			}
		}
		return nil
	})
	s.serveBy(s.Pods[1])
	eventually(t, patience, func() error { return reached(t.Context(), s.Client, inet.TCP, at, "pod-1") })
	if failed, _ := d.awaitIdle(patience).Sum("kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); failed != 0 {
		t.Errorf("%v syncs failed", failed)
	}
}

// churned returns the address of a device.
func churned(round, device int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 51, byte(round), byte(device + 1)})
}

// churn creates devices with an address each in the calling thread's namespace, renames them, and deletes all but the first.
func churn(devices, round int) error {
	links := make([]netlink.Link, devices)
	for i := range links {
		links[i] = &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("new%d-%d", round, i)}, PeerName: fmt.Sprintf("end%d-%d", round, i),
		}
		addr, err := netlink.ParseAddr(churned(round, i).String() + "/32")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkAdd(links[i]), netlink.AddrAdd(links[i], addr), netlink.LinkSetUp(links[i])); err != nil {
			return err
		}
	}
	for i, l := range links {
		err := errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, fmt.Sprintf("cali%d-%d", round, i)), netlink.LinkSetUp(l))
		if i > 0 {
			err = errors.Join(err, netlink.LinkDel(l))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestPodsAreRecognisedByDevicesAsTheyChange renames and recreates the device of local pods: rules match its name, whenever it
// exists.
func TestPodsAreRecognisedByDevicesAsTheyChange(t *testing.T) {
	s := newStill(t, lab.Config{Pods: 2})
	s.startBy("", nil, "--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth-pod")
	from := s.Pods[1]
	seenAs := func(want netip.Addr) error {
		a := from.Probe(t.Context(), inet.TCP, webIP, lab.Options{})
		if a.Outcome != lab.Answered || a.Source.Addr() != want {
			return fmt.Errorf("%s, want to be seen as %s", a, want)
		}
		return nil
	}
	eventually(t, patience, func() error { return seenAs(from.IPv4) })
	rename := func(old, name string) {
		t.Helper()
		if err := s.Node.Do(func() error {
			link, err := netlink.LinkByName(old)
			if err != nil {
				return err
			}
			return netlink.LinkSetName(link, name)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		rename(from.Device, "other0")
		lab.Check(t, seenAs(s.Node.IPv4), "by a device of another name")
		rename("other0", from.Device)
		lab.Check(t, seenAs(from.IPv4), "by a device of the old name")
	}
}

// TestTheBridgeOfPodsIsAddedAndRemoved renames, deletes and recreates the bridge of local pods, as the reinstallation of a network
// plugin does.
func TestTheBridgeOfPodsIsAddedAndRemoved(t *testing.T) {
	const bridge = "cni0"
	s := newStill(t, lab.Config{Pods: 3, Bridge: bridge})
	d := s.startBy("", nil, "--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", bridge)
	from := s.Pods[2]
	seen := func(server string, as netip.Addr) error {
		a := from.Probe(t.Context(), inet.TCP, webIP, lab.Options{})
		if a.Outcome != lab.Answered || a.Source.Addr() != as || a.Server != server {
			return fmt.Errorf("%s, want to be seen as %s by %s", a, as, server)
		}
		return nil
	}
	eventually(t, patience, func() error { return seen("pod-0", from.IPv4) })
	ip := func(args ...string) {
		t.Helper()
		if out, err := s.Node.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for round := range 3 {
		previous, next := s.Pods[round%2], s.Pods[(round+1)%2]
		ip("link", "set", bridge, "name", "other0")
		lab.Check(t, seen(previous.Name, s.Node.IPv4), "by a bridge of another name")
		ip("link", "set", "other0", "name", bridge)
		lab.Check(t, seen(previous.Name, from.IPv4), "by a bridge of the old name")
		ip("link", "delete", bridge)
		if err := seen(previous.Name, from.IPv4); err == nil {
			t.Error("without a bridge it is answered")
		}
		s.serveBy(next)
		ip("link", "add", bridge, "address", "02:6b:6e:02:00:00", "type", "bridge") // the pods have its hardware address
		ip("link", "set", bridge, "up")
		for _, pod := range s.Pods {
			ip("link", "set", pod.Device, "master", bridge)
			ip("route", "add", pod.IPv4.String()+"/32", "dev", bridge, "scope", "link")
		}
		eventually(t, patience, func() error { return seen(next.Name, from.IPv4) })
	}
	m := d.awaitIdle(patience)
	if failed, _ := m.Sum("kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); failed != 0 {
		t.Errorf("%v syncs failed", failed)
	}
	lab.Same(t, 1, m[`kubenftproxy_batches_total{kind="full"}`], "full batches")
}
