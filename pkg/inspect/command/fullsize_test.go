package command

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestTryFindsSmallMTU: --try connects to a server behind a device that drops large frames without an ICMP error, and to the same server behind a good one. The
// server sees a connection without data, which ends in order.
func TestTryFindsSmallMTU(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	for _, c := range []struct {
		name, banner, want string
		mtu                string
		family             inet.Family
	}{
		{"a good path", "", "answers in ", "1500", inet.IPv4},
		{"IPv6", "", "answers in ", "1500", inet.IPv6},
		{"a server that speaks first", "220 ready\r\n", "answers in ", "1500", inet.IPv4},
		{"large frames are dropped", "", ", but full-size segments (1460 bytes) are lost, so large transfers hang: compare the MTU ", "1300", inet.IPv4},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := l.Pods[0]
			ip := func(args ...string) string {
				out, err := pod.Command(t.Context(), "ip", args...).CombinedOutput()
				if err != nil {
					t.Fatalf("ip %v: %v: %s", args, err, out)
				}
				return string(out)
			}
			ip("link", "set", "eth0", "mtu", c.mtu)
			route, _, _ := strings.Cut(ip("-4", "route", "show", "default"), " advmss")
			ip(append(append([]string{"route", "change"}, strings.Fields(route)...), "advmss", "1460")...) // the sender does not know the MTU
			var server net.Listener
			lab.Must(t, pod.Do(func() (err error) {
				server, err = net.Listen("tcp", net.JoinHostPort([...]netip.Addr{pod.IPv4, pod.IPv6}[c.family].String(), "7000"))
				return err
			}))
			defer server.Close()
			type received struct {
				data string
				err  error
			}
			seen := make(chan received, 1)
			go func() {
				conn, err := server.Accept()
				if err != nil {
					seen <- received{err: err}
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, c.banner) // the client may have closed the connection
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				data, err := io.ReadAll(conn)
				seen <- received{string(data), err}
			}()
			var what string
			var fails bool
			lab.Must(t, l.Node.Do(func() error {
				what, fails = connect(t.Context(), server.Addr().String())
				return nil
			}))
			if !strings.Contains(what, c.want) || fails != (c.mtu != "1500") || strings.Contains(what, "not tried") {
				t.Errorf("%q, fails %v; want %q", what, fails, c.want)
			}
			if got := <-seen; got.data != "" || got.err != nil && c.banner == "" {
				t.Errorf("the server has received %d bytes, %v; want none, and the end of the connection", len(got.data), got.err)
			}
		})
	}
}

// TestTryNamesTheRoute: the result of a silent endpoint names the interface, so that a missing route of a pod shows.
func TestTryNamesTheRoute(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	silent := netip.AddrPortFrom(netip.MustParseAddr("10.244.0.99"), 8080)
	lab.Must(t, l.Node.Do(func() error {
		what, fails := connect(t.Context(), silent.String())
		if lab.Contains(t, what, "result", "or the route by eth0 is wrong"); !fails {
			t.Error("no failure")
		}
		return nil
	}))
}
