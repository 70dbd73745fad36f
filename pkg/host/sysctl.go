package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// SysctlRoot is the environment variable that names the folder in which to look for proc/sys/net, for a container in which
// the one of /proc is read-only. Default: the root folder.
const SysctlRoot = "KUBE_NFTPROXY_SYSCTL_ROOT"

// Conntrack is what connection tracking should be set to (kube-proxy: KubeProxyConntrackConfiguration). Zero leaves a value
// as it is.
type Conntrack struct {
	// MaxPerCore is the number of connections for each CPU; zero leaves the limit as it is, and Min aside.
	MaxPerCore, Min int
	// TCPBeLiberal is never set back to off.
	TCPBeLiberal                                 bool
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
}

// Setting is a file below the root folder and what was written into it.
type Setting struct {
	File  string
	Value int
}

const (
	conntrackMax = "proc/sys/net/netfilter/nf_conntrack_max"
	conntrackTCP = "proc/sys/net/netfilter/nf_conntrack_tcp_"
	conntrackUDP = "proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	// hashSize is what kube-proxy reaches by /sys/module/nf_conntrack/parameters/hashsize; this file needs no writable /sys.
	hashSize = "proc/sys/net/netfilter/nf_conntrack_buckets"
	// mostConnections bounds what many CPUs lead to: the table takes some 300 bytes for each (kubernetes issue 126130).
	mostConnections = 1 << 20
)

// Set writes, below a root folder, the values that differ, and returns those that it has written with the errors about
// others. The hash table has a bucket for every four connections, and is never made smaller.
func (c Conntrack) Set(root string) (set []Setting, err error) {
	var errs []error
	write := func(file string, value int, enough func(now int) bool) (ok bool) {
		done, err := ensure(root, file, value, enough)
		if done {
			set = append(set, Setting{file, value})
		}
		errs = append(errs, err)
		return err == nil
	}
	// A namespace without a limit of its own has no business with the machine's hash table either.
	if n := c.max(runtime.NumCPU()); n > 0 && write(conntrackMax, n, same(n)) {
		write(hashSize, n/4, func(now int) bool { return now >= n/4 })
	}
	for _, t := range []struct {
		file  string
		after time.Duration
	}{
		{conntrackTCP + "timeout_established", c.TCPEstablished}, {conntrackTCP + "timeout_close_wait", c.TCPCloseWait},
		{conntrackUDP, c.UDP}, {conntrackUDP + "_stream", c.UDPStream},
	} {
		if seconds := int(t.after / time.Second); seconds > 0 {
			write(t.file, seconds, same(seconds))
		}
	}
	if c.TCPBeLiberal {
		write(conntrackTCP+"be_liberal", 1, same(1))
	}
	return set, errors.Join(errs...)
}

// max is the number of connections to track, 0 for no opinion.
func (c Conntrack) max(cpus int) int {
	switch {
	case c.MaxPerCore <= 0:
		return 0
	case c.MaxPerCore*cpus > mostConnections:
		return mostConnections
	}
	return max(c.MaxPerCore*cpus, c.Min)
}

func same(want int) func(int) bool { return func(now int) bool { return now == want } }

// ensure writes a number into a file unless the one that it holds is good enough.
func ensure(root, file string, value int, enough func(now int) bool) (written bool, err error) {
	path := filepath.Join(root, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read sysctl: %w", err)
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && enough(now) {
		return false, nil
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644); err != nil { //nolint:gosec // the file is there
		return false, fmt.Errorf("set sysctl from %s to %d: %w", strings.TrimSpace(string(text)), value, err)
	}
	return true, nil
}

// SetOOMScore tells the kernel how willingly to kill this process when memory is short, -1000 to 1000.
func SetOOMScore(root string, score int) error {
	_, err := ensure(root, "proc/self/oom_score_adj", score, same(score))
	return err
}
