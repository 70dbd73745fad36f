package nodeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// enterNode gives the test a network namespace with the addresses of a node.
func enterNode(t testing.TB) {
	t.Helper()
	lab.EnterNamespace(t)
	for _, args := range []string{
		"link set lo up", "addr add 192.0.2.1/32 dev lo", "-6 addr add 2001:db8::1/128 dev lo nodad",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
}

// control sets a socket's options before it is bound.
type control func(fd int) error

// listen opens a socket and closes it at the end of the test.
func listen(t testing.TB, network, at string, options ...control) {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) {
			for _, o := range options {
				if err == nil {
					err = o(int(fd))
				}
			}
		})
		return err
	}}
	if strings.HasPrefix(network, "tcp") {
		l, err := c.Listen(context.Background(), network, at)
		lab.Must(t, err)
		t.Cleanup(func() { l.Close() })
		return
	}
	l, err := c.ListenPacket(context.Background(), network, at)
	lab.Must(t, err)
	t.Cleanup(func() { l.Close() })
}

// bind opens and binds a socket of a kind that the package net cannot open.
func bind(t testing.TB, kind int, at unix.Sockaddr) (fd int) {
	t.Helper()
	family := unix.AF_INET
	if _, six := at.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind, 0)
	lab.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	lab.Must(t, unix.Bind(fd, at))
	return fd
}

func onDevice(name string) control {
	return func(fd int) error { return unix.BindToDevice(fd, name) }
}

// bothFamilies clears IPV6_V6ONLY, which the package net sets on a socket on [::].
func bothFamilies(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
}

func port6Only(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) }

// shown returns a socket as text.
func shown(s Socket) string {
	text := fmt.Sprintf("%s %s", s.Protocol, s.Local)
	if s.V6Only {
		text += " v6only"
	}
	if s.Device != 0 {
		text += fmt.Sprintf(" device %d", s.Device)
	}
	return text
}

func listening(t testing.TB, r Range) (out []string, sockets []Socket) {
	t.Helper()
	sockets, err := Listening(r)
	lab.Must(t, err)
	for _, s := range sockets {
		out = append(out, shown(s))
	}
	slices.Sort(out)
	return out, sockets
}

// TestListening opens sockets of all kinds. Listening returns only those that accept packets of any sender.
func TestListening(t *testing.T) {
	enterNode(t)
	listen(t, "tcp4", "0.0.0.0:30001")
	listen(t, "tcp", "[::]:30002", bothFamilies)
	listen(t, "tcp6", "[::]:30003", port6Only)
	listen(t, "tcp4", "192.0.2.1:30004")
	listen(t, "tcp4", "127.0.0.1:30005")
	listen(t, "tcp6", "[2001:db8::1]:30006")
	mapped := &unix.SockaddrInet6{Port: 30007, Addr: netip.MustParseAddr("::ffff:192.0.2.1").As16()}
	lab.Must(t, unix.Listen(bind(t, unix.SOCK_STREAM, mapped), 1))
	listen(t, "tcp4", "0.0.0.0:30008", onDevice("lo"))
	listen(t, "udp4", "0.0.0.0:30009")
	listen(t, "udp", "[::]:30010", bothFamilies)
	listen(t, "udp6", "[::]:30011", port6Only)
	bind(t, unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: 30012, Addr: [4]byte{224, 0, 0, 251}})
	// Not in the range.
	listen(t, "tcp4", "0.0.0.0:29999")
	listen(t, "udp4", "0.0.0.0:30100")
	// Connected sockets: both ends for TCP, the client's end for UDP.
	listen(t, "tcp4", "192.0.2.1:40000")
	for _, network := range []string{"tcp4", "udp4"} {
		d := net.Dialer{}
		local, err := net.ResolveTCPAddr("tcp4", "192.0.2.1:30020")
		lab.Must(t, err)
		d.LocalAddr = local
		if network == "udp4" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local.AddrPort())
		}
		conn, err := d.Dial(network, "192.0.2.1:40000")
		lab.Must(t, err)
		t.Cleanup(func() { conn.Close() })
	}
	bind(t, unix.SOCK_STREAM, &unix.SockaddrInet4{Port: 30021}) // bound, but not listening

	got, sockets := listening(t, Range{30000, 30099})
	want := []string{
		"tcp 0.0.0.0:30001", "tcp 0.0.0.0:30008 device 1", "tcp 127.0.0.1:30005", "tcp 192.0.2.1:30004", "tcp 192.0.2.1:30007",
		"tcp [2001:db8::1]:30006 v6only", "tcp [::]:30002", "tcp [::]:30003 v6only",
		"udp 0.0.0.0:30009", "udp 224.0.0.251:30012", "udp [::]:30010", "udp [::]:30011 v6only",
	}
	lab.Same(t, want, got, "sockets")
	own, err := OwnSockets()
	lab.Must(t, err)
	cookies := map[uint64]bool{}
	for _, s := range sockets {
		if _, is := own[s.Inode]; !is {
			t.Errorf("%s: OwnSockets lacks inode %d", shown(s), s.Inode)
		}
		cookies[s.Cookie] = true
	}
	if len(cookies) != len(sockets) {
		t.Errorf("%d cookies for %d sockets", len(cookies), len(sockets))
	}
	// The range includes both ends.
	if got, _ := listening(t, Range{30001, 30002}); !slices.Equal(got, []string{"tcp 0.0.0.0:30001", "tcp [::]:30002"}) {
		t.Errorf("sockets from 30001 to 30002: %q", got)
	}
}

// TestAbsent queries a protocol that no kernel supports: the answer is the same as without the module for TCP sockets.
func TestAbsent(t *testing.T) {
	enterNode(t)
	if _, err := appendListening(nil, inet.IPv4, 200, Range{0, 65535}); !errors.Is(err, errAbsent) {
		t.Errorf("error %v, want %v", err, errAbsent)
	}
}

// TestOwnSocketsAreThisProcessesAlone passes a listening socket to another process, and then closes it in this process.
func TestOwnSocketsAreThisProcessesAlone(t *testing.T) {
	enterNode(t)
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: 30080})
	lab.Must(t, err)
	file, err := l.File()
	lab.Must(t, err)
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{file}
	lab.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, ours := range []bool{true, false} {
		_, sockets := listening(t, Range{30080, 30080})
		own, err := OwnSockets()
		lab.Must(t, err)
		if len(sockets) != 1 {
			t.Fatalf("%d sockets listen, want 1", len(sockets))
		}
		if _, is := own[sockets[0].Inode]; is != ours {
			t.Errorf("the socket is this process's: %v, want %v", is, ours)
		}
		if err := errors.Join(l.Close(), file.Close()); ours && err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadEphemeral(t *testing.T) {
	enterNode(t)
	for _, s := range []string{"ip_local_port_range=20000 40000", "ip_local_reserved_ports=30000-32767,35000"} {
		if out, err := exec.Command("sysctl", "-w", "net.ipv4."+s).CombinedOutput(); err != nil {
			t.Fatalf("sysctl: %v\n%s", err, out)
		}
	}
	got, err := ReadEphemeral()
	lab.Must(t, err)
	want := Ephemeral{Range{20000, 40000}, []Range{{30000, 32767}, {35000, 35000}}}
	lab.Same(t, want, got, "ephemeral range")
}

// BenchmarkSearch measures one search with 2,768 node ports, the size of the default range, and many other sockets:
// half of them listening TCP sockets, half UDP sockets.
func BenchmarkSearch(b *testing.B) {
	for _, c := range []struct {
		name    string
		sockets int
		ports   Range
	}{
		{"idle", 0, Range{30000, 32767}},
		{"10000 sockets elsewhere", 10000, Range{30000, 32767}},
		{"10000 sockets inside", 10000, Range{1024, 65535}},
	} {
		b.Run(c.name, func(b *testing.B) {
			enterNode(b)
			for i := range c.sockets / 2 {
				at := fmt.Sprintf("127.0.%d.1:%d", i%100, 10000+i/100)
				listen(b, "tcp4", at)
				listen(b, "udp4", at)
			}
			w := New(Config{
				NodeName: "node-1", Listening: Listening, Own: OwnSockets, Ephemeral: ReadEphemeral, Report: func(model.Problem) {},
				Metrics: discard{},
			})
			w.setAddresses(inet.IPv4, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
			for i := range 2768 {
				n := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("svc-", i)}
				w.set(n, []model.Key{{Port: uint16(30000 + i), Protocol: inet.TCP}})
			}
			if c.ports.First < 30000 {
				w.set(web, []model.Key{{Port: 1024, Protocol: inet.TCP}, {Port: 65535, Protocol: inet.TCP}})
			}
			b.ReportAllocs()
			start := lab.ProcessorTime(b)
			for b.Loop() {
				lab.Must(b, w.search(b.Context()))
			}
			b.ReportMetric(float64(lab.ProcessorTime(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// discard discards the metrics.
type discard struct{}

func (discard) NodePortCollisions(string, int) {}
func (discard) NodePortsSearched(error)        {}
