// Package host reads and sets the parts of this machine that the proxy depends on, other than its ruleset.
//
// In: the network namespace and the kernel that the process runs in; conntrack sysctls and oom_score_adj from the
// configuration.
// Out: addresses and capabilities; sysctls that are set, and the conntrack module loaded.
// Never: a change that the configuration or the start of a proxy does not ask for.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Addresses returns the addresses of all interfaces, without IPv6 addresses that another machine has: the kernel does
// not use an address after its duplicate detection has failed.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	// An interrupted list may lack addresses, and no later event may report them: the interruption may have been a
	// device without addresses.
	for again := 0; again < 20 && errors.Is(err, netlink.ErrDumpInterrupted); again++ {
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && a.Flags&unix.IFA_F_DADFAILED == 0 {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// subscribeAgain is the time between two attempts to subscribe to address changes.
const subscribeAgain = time.Second

// FollowAddresses calls changed whenever an address is added or removed, until the context ends. If the subscription
// fails or the kernel drops events, it subscribes again, and then calls changed: events may be missing.
func FollowAddresses(ctx context.Context, changed func()) error {
	for missed := false; ctx.Err() == nil; missed = true {
		err := followOnce(ctx, changed, missed)
		if ctx.Err() != nil {
			break
		}
		klog.FromContext(ctx).Error(err, "Changes of addresses may have been missed; reading all addresses again",
			"in", subscribeAgain)
		select {
		case <-ctx.Done():
		case <-time.After(subscribeAgain):
		}
	}
	return nil
}

// followOnce follows addresses until the subscription ends at the first error.
func followOnce(ctx context.Context, changed func(), missed bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan netlink.AddrUpdate, 64)
	why := errors.New("the subscription ended")
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) { why = err }, // called before updates is closed
	})
	if err != nil {
		return fmt.Errorf("subscribe to address changes: %w", err)
	}
	if missed {
		changed()
	}
	for range updates {
		changed()
	}
	return fmt.Errorf("receive address changes: %w", why)
}

// skipKernelCheck is the environment variable that also disables kube-proxy's check of the kernel version.
const skipKernelCheck = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"

// CheckKernel returns an error if the kernel is older than the minimum for nftables mode.
func CheckKernel() error {
	if os.Getenv(skipKernelCheck) != "" {
		return nil
	}
	return checkRelease(Release())
}

// Release returns the release of the running kernel, such as 6.12.9, or "unknown".
func Release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func checkRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read kernel version %q: %w", release, err)
	}
	if major < 5 || major == 5 && minor < 13 {
		return fmt.Errorf("kernel %s is too old: 5.13 or later is needed (set %s to start anyway)",
			release, skipKernelCheck)
	}
	return nil
}

// Families returns the IP families of the kernel: IPv4, and IPv6 unless it is missing or disabled.
func Families() []inet.Family { return families("/proc") }

// families assumes IPv6 if it cannot read the settings: a later probe finds missing features. IPv6 may be disabled by
// default and enabled on some interfaces, which then have addresses.
func families(proc string) []inet.Family {
	only4 := []inet.Family{inet.IPv4}
	addresses, err := os.ReadFile(filepath.Join(proc, "net/if_inet6"))
	if err != nil {
		if _, unknown := os.Stat(filepath.Join(proc, "net/dev")); errors.Is(err, fs.ErrNotExist) && unknown == nil {
			return only4
		}
		return inet.Families[:]
	}
	disabled, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv6/conf/all/disable_ipv6"))
	if err == nil && strings.TrimSpace(string(disabled)) == "1" && len(addresses) == 0 {
		return only4
	}
	return inet.Families[:]
}
