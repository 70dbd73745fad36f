package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netns"
)

// dial returns a function that opens connections in the cluster's network namespace. A socket belongs permanently to the
// namespace in which it was created, so the caller can use the connection in any namespace.
func (c *Cluster) dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		nsErr := within(c.config.Netns, func() {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
		})
		if nsErr != nil {
			return nil, nsErr
		}
		return conn, err
	}
}

// freePort returns addr with a port that is unused at the moment.
func freePort(namespace string, addr netip.Addr) (free netip.AddrPort, err error) {
	nsErr := within(namespace, func() {
		var listener *net.TCPListener
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			err = fmt.Errorf("find a free port: %w", err)
			return
		}
		defer listener.Close()
		free = netip.AddrPortFrom(addr, uint16(listener.Addr().(*net.TCPAddr).Port))
	})
	if nsErr != nil {
		return free, nsErr
	}
	return free, err
}

// within calls f with the thread in the named network namespace; an empty name means the caller's own.
func within(namespace string, f func()) error {
	if namespace == "" {
		f()
		return nil
	}
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find own network namespace: %w", err)
	}
	defer own.Close()
	if err := enter(namespace); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", namespace, err)
	}
	f()
	if err := netns.Set(own); err != nil {
		// The thread stays locked and so exits with its goroutine: no other goroutine may run in that namespace.
		return fmt.Errorf("leave network namespace %s: %w", namespace, err)
	}
	runtime.UnlockOSThread()
	return nil
}

func enter(namespace string) error {
	handle, err := netns.GetFromName(namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	return netns.Set(handle)
}
