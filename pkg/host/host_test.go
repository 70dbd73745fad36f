package host

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestCheckRelease(t *testing.T) {
	for release, ok := range map[string]bool{
		"5.12.19": false, "4.19.0-27-amd64": false, "5.13.0": true, "6.1.0-56-cloud-amd64": true, "6.18.44-x": true,
		"10.0": true, "garbage": false,
	} {
		if err := checkRelease(release); (err == nil) != ok {
			t.Errorf("checkRelease(%q) = %v", release, err)
		}
	}
}

func TestCheckKernelCanBeSkipped(t *testing.T) {
	t.Setenv(skipKernelCheck, "1")
	if err := CheckKernel(); err != nil {
		t.Error(err)
	}
}

func TestAddressesAreListedAndFollowed(t *testing.T) {
	lab.EnterNamespace(t)
	changed := make(chan struct{}, 16)
	follow(t, func() { changed <- struct{}{} })
	want := netip.MustParseAddr("192.0.2.9")
	add(t, want)
	<-changed
	got, err := Addresses()
	if err != nil || !slices.Contains(got, want) {
		t.Errorf("Addresses() = %v, %v; want %v among them", got, err, want)
	}
}

// TestDuplicateAddresses: an IPv6 address that another machine has is no address of this one.
func TestDuplicateAddresses(t *testing.T) {
	lab.EnterNamespace(t)
	for _, command := range []string{
		"link add veth7 type veth peer name veth8", "link set veth7 up", "link set veth8 up", "addr add 2001:db8::7/64 dev veth7 nodad",
		"addr add 2001:db8::7/64 dev veth8",
	} {
		lab.Run(t, "ip", strings.Fields(command)...)
	}
	count := func() (n int) {
		list, err := Addresses()
		lab.Must(t, err)
		for _, addr := range list {
			if addr == netip.MustParseAddr("2001:db8::7") {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(20 * time.Second); count() != 1; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the address occurs %d times, want 1", count())
		}
	}
}

// A CNI plugin may add more addresses at once than the kernel queues: the subscription ends, and later changes must
// still be noticed.
func TestAddressesAreFollowedAfterAnOverrun(t *testing.T) {
	lab.EnterNamespace(t)
	gate, calls := make(chan struct{}), make(chan struct{}, 1<<16)
	follow(t, func() {
		<-gate
		calls <- struct{}{}
	})
	const enough = 4000
	addr := netip.MustParseAddr("10.0.0.0")
	for range enough {
		addr = addr.Next()
		add(t, addr)
	}
	close(gate)
	heard := 0
	for quiet := false; !quiet; { // until all queued events are read
		select {
		case <-calls:
			heard++
		case <-time.After(100 * time.Millisecond):
			quiet = true
		}
	}
	if heard >= enough {
		t.Fatalf("%d of %d changes were received: there was no overrun", heard, enough)
	}
	add(t, addr.Next())
	select {
	case <-calls:
	case <-time.After(20 * time.Second):
		t.Errorf("after an overrun, in which %d of %d changes were received, another one was not", heard, enough)
	}
}

// follow follows the addresses of the calling thread's namespace until the end of the test.
func follow(t *testing.T, changed func()) {
	t.Helper()
	subscribed := routeSockets(t)
	home, err := netns.Get()
	lab.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread stays there
		err := netns.Set(home)
		if err == nil {
			err = FollowAddresses(ctx, changed)
		}
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("following ended with %v", err)
		}
		_ = home.Close()
	})
	for deadline := time.Now().Add(20 * time.Second); routeSockets(t) == subscribed; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no subscription")
		}
	}
}

// routeSockets counts this namespace's sockets with a subscription to addresses.
func routeSockets(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/netlink")
	lab.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "0" && f[3] != "00000000" {
			n++
		}
	}
	return n
}

func add(t *testing.T, addr netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	lab.Must(t, err)
	one, err := netlink.ParseAddr(netip.PrefixFrom(addr, addr.BitLen()).String())
	lab.Must(t, err)
	lab.Must(t, netlink.AddrAdd(lo, one))
}

// TestFamilies: an unreadable setting does not mean missing, and IPv6 that is disabled by default may be enabled on an
// interface.
func TestFamilies(t *testing.T) {
	const address = "fd000000000000000000000000000001 02 40 00 80     eth0\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"both":                           {map[string]string{"net/dev": "", "net/if_inet6": address, "sys/net/ipv6/conf/all/disable_ipv6": "0\n"}, 2},
		"no address yet":                 {map[string]string{"net/dev": "", "net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "0\n"}, 2},
		"disabled":                       {map[string]string{"net/dev": "", "net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "1\n"}, 1},
		"disabled but for an interface":  {map[string]string{"net/dev": "", "net/if_inet6": address, "sys/net/ipv6/conf/all/disable_ipv6": "1\n"}, 2},
		"missing":                        {map[string]string{"net/dev": ""}, 1},
		"nothing is known: no proc here": {nil, 2},
	} {
		proc := t.TempDir()
		for path, text := range c.files {
			path = filepath.Join(proc, path)
			lab.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
		}
		if got := families(proc); len(got) != c.want {
			t.Errorf("%s: %v, want %d families", name, got, c.want)
		}
	}
}
