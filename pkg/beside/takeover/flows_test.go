package takeover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// addresses has the addresses in the rules of testdata, by family.
var addresses = [2]struct {
	web, dns, empty, external netip.Addr
	service, pods             string
}{
	{
		netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.96.0.12"),
		netip.MustParseAddr("198.51.100.7"), "10.96.0.0/16", "10.244.0.0/16",
	},
	{
		netip.MustParseAddr("fd00:10:96::10"), netip.MustParseAddr("fd00:10:96::11"), netip.MustParseAddr("fd00:10:96::12"),
		netip.MustParseAddr("2001:db8:1::7"), "fd00:10:96::/112", "fd00:10:244::/56",
	},
}

// webName is the Service with all kinds of addresses.
var webName = types.NamespacedName{Namespace: "default", Name: "web"}

// ours returns a plan for the Services in testdata, with or without detection of local pods, and the Service web.
func ours(l *lab.Lab, pods bool) (*plan.Planner, *model.Service) {
	options := plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000, AnyNodeAddress: [2]bool{true, true}}
	web := &model.Service{Name: webName}
	dns := &model.Service{Name: types.NamespacedName{Namespace: "kube-system", Name: "dns"}}
	empty := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: "empty"}}
	for _, f := range inet.Families {
		at := &addresses[f]
		if pods {
			options.LocalPods[f].Prefix = netip.MustParsePrefix(at.pods)
		}
		addr := func(h *lab.Host, port uint16) netip.AddrPort { return netip.AddrPortFrom(h.Addrs()[f], port) }
		port := func(s *model.Service, p inet.Protocol, endpoints ...netip.AddrPort) *model.ServicePort {
			sp := &model.ServicePort{
				Name: model.PortName{NamespacedName: s.Name}, Protocol: p, Family: f, Cluster: endpoints, HasEndpoints: len(endpoints) > 0,
			}
			s.Ports = append(s.Ports, sp)
			return sp
		}
		frontend := func(p *model.ServicePort, kind model.Kind, a netip.Addr, port uint16) {
			p.Frontends = append(p.Frontends, model.Frontend{
				Key: model.Key{Addr: a, Port: port, Protocol: p.Protocol, Family: f}, Kind: kind,
			})
		}
		p := port(web, inet.TCP, addr(l.Pods[0], 8080), addr(l.Remotes[0], 8080))
		frontend(p, model.ClusterIP, at.web, 80)
		frontend(p, model.ExternalIP, at.external, 80)
		frontend(p, model.NodePort, netip.Addr{}, 30080)
		frontend(port(dns, inet.UDP, addr(l.Pods[1], 5353)), model.ClusterIP, at.dns, 53)
		frontend(port(empty, inet.TCP), model.ClusterIP, at.empty, 80)
	}
	planner := plan.New(options)
	for _, s := range []*model.Service{web, dns, empty} {
		planner.Set(s.Name, s)
	}
	for _, f := range inet.Families {
		planner.SetServiceCIDRs(f, []netip.Prefix{netip.MustParsePrefix(addresses[f].service)})
	}
	return planner, web
}

// flow is an established connection, or a UDP client that keeps its port.
type flow struct {
	what string
	net.Conn
	lines *bufio.Reader
}

// check sends a message and awaits the reply.
func (f *flow) check(t testing.TB) {
	t.Helper()
	_ = f.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := fmt.Fprintln(f, "still there"); err != nil {
		t.Errorf("%s: %v", f.what, err)
		return
	}
	lab.Check(t, lab.Err(f.lines.ReadString('\n')), "%s", f.what)
}

// switchOver is a lab in which kube-nftproxy replaces kube-proxy.
type switchOver struct {
	*lab.Lab
	flows   []*flow
	kernel  *apply.Kernel
	planner *plan.Planner
	web     *model.Service
}

func newSwitchOver(t *testing.T) *switchOver {
	t.Helper()
	s := &switchOver{Lab: lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1})}
	for _, h := range []*lab.Host{s.Pods[0], s.Remotes[0]} {
		lab.Must(t, lab.Err(h.ServeEcho(8080)))
	}
	lab.Must(t, lab.Err(s.Pods[1].Serve(inet.UDP, 5353)))
	// A port of the node that must not be reachable at a Service's address.
	lab.Must(t, lab.Err(s.Node.Serve(inet.TCP, 22)))
	return s
}

// on runs f in the node's namespace; f must not fail the test.
func (s *switchOver) on(t testing.TB, f func() error) {
	t.Helper()
	lab.Must(t, s.Node.Do(f))
}

// clients returns clients with the frontends to which they connect.
func (s *switchOver) clients(f inet.Family) []struct {
	host  *lab.Host
	proto inet.Protocol
	to    netip.AddrPort
} {
	at, node := &addresses[f], s.Node.Addrs()[f]
	return []struct {
		host  *lab.Host
		proto inet.Protocol
		to    netip.AddrPort
	}{
		{s.Pods[1], inet.TCP, netip.AddrPortFrom(at.web, 80)},
		{s.Node, inet.TCP, netip.AddrPortFrom(at.web, 80)},
		{s.Client, inet.TCP, netip.AddrPortFrom(at.external, 80)},
		{s.Client, inet.TCP, netip.AddrPortFrom(node, 30080)},
		{s.Pods[0], inet.UDP, netip.AddrPortFrom(at.dns, 53)},
		{s.Node, inet.UDP, netip.AddrPortFrom(at.dns, 53)},
	}
}

// connect opens a flow of each client, under the current rules.
func (s *switchOver) connect(t testing.TB) {
	t.Helper()
	for _, f := range inet.Families {
		for _, c := range s.clients(f) {
			conn, err := c.host.Dial(t.Context(), c.proto, c.to)
			if err != nil {
				t.Fatalf("%s to %s: %v", c.host.Name, c.to, err)
			}
			t.Cleanup(func() { conn.Close() })
			fl := &flow{fmt.Sprintf("the %s flow from %s to %s", c.proto, c.host.Name, c.to), conn, bufio.NewReader(conn)}
			if c.proto == inet.TCP {
				_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
				if _, err := fl.lines.ReadString('\n'); err != nil { // the server's greeting
					t.Fatalf("%s: %v", fl.what, err)
				}
			}
			fl.check(t)
			s.flows = append(s.flows, fl)
		}
	}
}

// check checks the open flows, and opens new ones.
func (s *switchOver) check(t testing.TB, when string) {
	t.Helper()
	for _, f := range s.flows {
		f.check(t)
	}
	for _, f := range inet.Families {
		for _, c := range s.clients(f) {
			if a := c.host.Probe(t.Context(), c.proto, c.to, lab.Options{Timeout: 3 * time.Second}); a.Outcome != lab.Answered {
				t.Errorf("%s: new %s from %s to %s: %s", when, c.proto, c.host.Name, c.to, a)
			}
		}
		for _, refused := range []netip.AddrPort{netip.AddrPortFrom(addresses[f].empty, 80), netip.AddrPortFrom(addresses[f].web, 22)} {
			if a := s.Pods[0].Probe(t.Context(), inet.TCP, refused, lab.Options{Timeout: 3 * time.Second}); a.Outcome != lab.Refused {
				t.Errorf("%s: %s should be refused: %s", when, refused, a)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// serve writes the program's tables.
func (s *switchOver) serve(t testing.TB, pods bool) {
	t.Helper()
	s.planner, s.web = ours(s.Lab, pods)
	s.on(t, func() (err error) {
		if s.kernel, err = apply.Open(); err == nil {
			_, err = s.kernel.Sync(s.planner)
		}
		return err
	})
	t.Cleanup(func() { s.kernel.Close() })
}

// setWeb changes the Service web; nil deletes it.
func (s *switchOver) setWeb(t testing.TB, web *model.Service) {
	t.Helper()
	s.planner.Set(webName, web)
	s.on(t, func() error {
		_, err := s.kernel.Sync(s.planner)
		return err
	})
}

// take removes kube-proxy's objects except those in use.
func (s *switchOver) take(t testing.TB) (busy int) {
	t.Helper()
	logger, _ := logged(t)
	s.on(t, func() (err error) {
		busy, err = remove(newNotes(logger), nil, true)
		return err
	})
	return busy
}

// left counts the remaining objects.
func (s *switchOver) left(t testing.TB) (l Leftovers) {
	t.Helper()
	s.on(t, func() (err error) {
		l, err = Look(nil)
		return err
	})
	return l
}

// sh runs a command on the node.
func (s *switchOver) sh(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	cmd := s.Node.Command(context.Background(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// Connections that kube-proxy's iptables rules have translated continue after the removal of these rules. New
// connections meet the program's rules.
func TestConnectionsOutliveTheRules(t *testing.T) {
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			s := newSwitchOver(t)
			s.on(t, func() error {
				for _, name := range []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"} {
					makeAccount(t, name)
				}
				return nil
			})
			multi := "xtables-" + string(b) + "-multi"
			for _, c := range commands {
				s.sh(t, testFile(t, c+".txt"), multi, c+"-restore", "-n", "-c")
			}
			s.connect(t)
			s.serve(t, true)
			s.check(t, "beside kube-proxy's rules")
			lab.Same(t, 0, s.take(t), "virtual servers are reported in use")
			if left := s.left(t); left.any() {
				t.Errorf("left: %v", left)
			}
			s.check(t, "after the removal of kube-proxy's rules")
		})
	}
}
