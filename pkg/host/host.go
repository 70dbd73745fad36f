// Package host asks this machine what the proxy needs to know of it.
//
// In: the network namespace and the kernel that the process runs in.
// Out: addresses and capabilities.
// Never: a change.
package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Addresses lists the addresses of all interfaces.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// FollowAddresses calls changed whenever an address is added or removed, until the context ends.
func FollowAddresses(ctx context.Context, changed func()) error {
	updates := make(chan netlink.AddrUpdate, 64)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("subscribe to address changes: %w", err)
	}
	return follow(ctx, updates, changed)
}

func follow(ctx context.Context, updates <-chan netlink.AddrUpdate, changed func()) error {
	for range updates {
		changed()
	}
	if ctx.Err() == nil {
		return errors.New("subscription to address changes ended")
	}
	return nil
}

// SkipKernelCheck is the environment variable by which kube-proxy too is told to go on with an older kernel.
const SkipKernelCheck = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"

// CheckKernel reports a kernel that is older than what nftables mode is supported on.
func CheckKernel() error {
	if os.Getenv(SkipKernelCheck) != "" {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	return checkRelease(unix.ByteSliceToString(u.Release[:]))
}

func checkRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read kernel version %q: %w", release, err)
	}
	if major < 5 || major == 5 && minor < 13 {
		return fmt.Errorf("kernel %s is too old: 5.13 or later is needed (set %s to try all the same)", release, SkipKernelCheck)
	}
	return nil
}

// Families lists the IP families that the kernel serves: IPv4, and IPv6 unless it is missing or disabled.
func Families() []model.Family {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []model.Family{model.IPv4}
	}
	disabled, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(disabled)) == "1" {
		return []model.Family{model.IPv4}
	}
	return model.Families[:]
}
