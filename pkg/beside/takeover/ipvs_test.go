package takeover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// kubeProxyIPVS creates the objects of mode ipvs.
func (s *switchOver) kubeProxyIPVS(t *testing.T, b backend) {
	t.Helper()
	s.sh(t, testFile(t, "ipvs-servers.txt"), "ipvsadm", "-R")
	lab.Must(t, s.Node.Sysctl("ipv4/vs/conntrack", "1"))
	sets := testFile(t, "ipvs-ipset.txt")
	s.sh(t, sets, "ipset", "restore")
	for _, c := range commands {
		s.sh(t, testFile(t, "ipvs-"+c+".txt"), "xtables-"+string(b)+"-multi", c+"-restore", "-n", "-c")
	}
	s.on(t, func() error {
		link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: device}}
		errs := []error{netlink.LinkAdd(link)}
		for _, m := range regexp.MustCompile(`(?m)^add KUBE-(?:6-)?IPVS-IPS (\S+)`).FindAllStringSubmatch(sets, -1) {
			a, err := netlink.ParseAddr(m[1] + map[bool]string{true: "/128", false: "/32"}[strings.Contains(m[1], ":")])
			if err == nil {
				err = netlink.AddrAdd(link, a)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// await polls until check succeeds: the kernel sends no event.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	const patience = 3 * time.Minute
	for end := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// scheduled lists the connections of ipvs by protocol, client and virtual server. ipvs lists a closed connection for
// some minutes.
func (s *switchOver) scheduled(t testing.TB) (list []string) {
	t.Helper()
	for _, line := range strings.Split(s.sh(t, "", "ipvsadm", "-L", "-n", "-c"), "\n") {
		if f := strings.Fields(line); len(f) > 4 && (f[0] == "TCP" || f[0] == "UDP") {
			list = append(list, f[0]+" "+f[3]+" "+f[4])
		}
	}
	slices.Sort(list)
	return list
}

func (s *switchOver) servers(t testing.TB) (list []string) {
	t.Helper()
	s.on(t, func() error {
		v, err := openIPVS(nil)
		if err != nil {
			return err
		}
		servers, err := v.servers()
		for _, s := range servers {
			list = append(list, s.String())
		}
		return err
	})
	slices.Sort(list)
	return list
}

// Connections of ipvs continue until they end. Meanwhile, new connections meet the program's rules, and the node's
// own ports are not reachable at a Service's address. After the last connection, all objects are removed.
func TestConnectionsByIPVSAreDrained(t *testing.T) {
	lab.NeedIPVS(t)
	for _, tc := range []struct {
		b    backend
		pods bool // whether local pods are detected
	}{{"nft", false}, {"legacy", true}} {
		t.Run(fmt.Sprintf("%s, pods detected %t", tc.b, tc.pods), func(t *testing.T) {
			s := newSwitchOver(t)
			s.kubeProxyIPVS(t, tc.b)
			s.connect(t)
			before := s.scheduled(t)
			if len(before) < len(s.flows) {
				t.Fatalf("ipvs has %d connections, want %d: %v", len(before), len(s.flows), before)
			}
			s.serve(t, tc.pods)
			s.check(t, "beside kube-proxy's virtual servers")
			if now := s.scheduled(t); !slices.Equal(now, before) {
				t.Errorf("ipvs has new connections: %v, before %v", now, before)
			}
			busy := s.take(t)
			var want []string
			for _, f := range inet.Families {
				at := addresses[f]
				want = append(want, "TCP "+netip.AddrPortFrom(at.web, 80).String(), "UDP "+netip.AddrPortFrom(at.dns, 53).String(),
					"TCP "+netip.AddrPortFrom(at.external, 80).String())
			}
			want = append(want, "TCP 192.0.2.1:30080", "TCP [2001:db8::1]:30080")
			slices.Sort(want)
			if got := s.servers(t); !slices.Equal(got, want) || busy != len(want) {
				t.Errorf("virtual servers in use %v, counted %d, want %v", got, busy, want)
			}
			for _, f := range inet.Families {
				if s.isLocal(t, addresses[f].empty) || !s.isLocal(t, addresses[f].web) {
					t.Errorf("%s should have been removed from the device, and %s not", addresses[f].empty, addresses[f].web)
				}
			}
			s.check(t, "while ipvs connections continue")
			s.checkDeleted(t)
			// With these timeouts, ipvs drops closed TCP connections and idle UDP flows after a second instead of
			// minutes. It drops reset connections after ten seconds.
			s.sh(t, "", "ipvsadm", "--set", "900", "1", "1")
			for _, fl := range s.flows {
				fl.check(t)
				if tcp, ok := fl.Conn.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0)
				}
				fl.Close()
			}
			s.flows = nil
			await(t, "end of the connections", func() bool { return s.take(t) == 0 })
			if left := s.left(t); left.any() {
				t.Errorf("left: %v", left)
			}
			if got := s.servers(t); len(got) > 0 {
				t.Errorf("virtual servers left: %v", got)
			}
			for _, name := range commands {
				if rules := s.sh(t, "", "xtables-"+string(tc.b)+"-multi", name+"-save"); strings.Contains(rules, "KUBE-") {
					t.Errorf("rules left:\n%s", rules)
				}
			}
			s.check(t, "after the removal of all objects")
		})
	}
}

// checkDeleted checks that a Service that is deleted while ipvs drains gets no new connections, although its virtual
// servers still exist.
func (s *switchOver) checkDeleted(t testing.TB) {
	t.Helper()
	s.setWeb(t, nil)
	before := s.scheduled(t)
	for _, f := range inet.Families {
		for _, h := range []*lab.Host{s.Pods[1], s.Node} {
			at := netip.AddrPortFrom(addresses[f].web, 80)
			if a := h.Probe(t.Context(), inet.TCP, at, lab.Options{}); a.Outcome == lab.Answered {
				t.Errorf("a deleted Service, from %s: %s", h.Name, a)
			}
		}
	}
	if now := s.scheduled(t); !slices.Equal(now, before) {
		t.Errorf("ipvs has new connections: %v, before %v", now, before)
	}
	s.setWeb(t, s.web)
	s.check(t, "after a Service was deleted and created again")
}

// isLocal reports whether an address is on the device.
func (s *switchOver) isLocal(t testing.TB, a netip.Addr) (found bool) {
	t.Helper()
	s.on(t, func() error {
		link, err := findDevice()
		if err != nil || link == nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, addr := range addrs {
			found = found || addr.IP.String() == a.String()
		}
		return err
	})
	return found
}

// Cleanup does not wait for connections. Virtual servers at excluded addresses stay. If kube-proxy's device and sets
// are missing, all virtual servers stay.
func TestCleanupOfIPVS(t *testing.T) {
	lab.NeedIPVS(t)
	s := newSwitchOver(t)
	const somebodys = "-A -t 203.0.113.9:80 -s rr\n-a -t 203.0.113.9:80 -r 10.244.0.10:8080 -m -w 1\n-A -f 7 -s rr\n"
	s.sh(t, somebodys, "ipvsadm", "-R")
	before := s.sh(t, "", "ipvsadm", "-S", "-n")
	clean := func() {
		t.Helper()
		logger, _ := logged(t)
		s.on(t, func() error { return Cleanup(logger, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}) })
	}
	check := func(when string) {
		t.Helper()
		if after := s.sh(t, "", "ipvsadm", "-S", "-n"); after != before {
			t.Errorf("virtual servers %s:\n%s\nwant\n%s", when, after, before)
		}
	}
	clean()
	check("without kube-proxy's")
	s.kubeProxyIPVS(t, "nft")
	s.connect(t)
	clean()
	check("after the removal of kube-proxy's")
	var left Leftovers
	s.on(t, func() (err error) {
		left, err = Look(nil)
		return err
	})
	if left.any() {
		t.Errorf("left: %v", left)
	}
	logger, _ := logged(t)
	s.on(t, func() error { return Cleanup(logger, nil) })
	check("after a cleanup that excludes none, without kube-proxy's device and sets")

	// Half of the objects are deleted already.
	s.kubeProxyIPVS(t, "legacy")
	s.on(t, func() error {
		link, err := findDevice()
		if err == nil {
			err = netlink.LinkDel(link)
		}
		return err
	})
	clean()
	check("without the device")
	s.kubeProxyIPVS(t, "nft")
	s.sh(t, "", "ipvsadm", "-C")
	clean()
	if left = s.left(t); left.any() {
		t.Errorf("left: %v", left)
	}
}

// A device of the same name but of another type stays.
func TestADeviceOfAnotherKindStays(t *testing.T) {
	lab.EnterNamespace(t)
	lab.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: "other"}))
	logger, _ := logged(t)
	lab.Must(t, Cleanup(logger, nil))
	if _, err := netlink.LinkByName(device); err != nil {
		t.Error(err)
	}
}
