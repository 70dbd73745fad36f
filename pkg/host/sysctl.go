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

	"k8s.io/utils/cpuset"
)

// SysctlRoot is the environment variable with the directory that contains proc/sys/net, for a container with a
// read-only /proc. Default: the root directory.
const SysctlRoot = "KUBE_NFTPROXY_SYSCTL_ROOT"

// Conntrack holds settings of connection tracking (kube-proxy: KubeProxyConntrackConfiguration). Zero keeps a value
// unchanged.
type Conntrack struct {
	// MaxPerCore is the number of connections for each CPU. Zero keeps the limit unchanged and ignores Min.
	MaxPerCore, Min int
	// TCPBeLiberal is never reset to off.
	TCPBeLiberal                                 bool
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
}

// Setting is a file below the root directory and the value written to it.
type Setting struct {
	File  string
	Value int
}

const (
	conntrackMax = "proc/sys/net/netfilter/nf_conntrack_max"
	conntrackTCP = "proc/sys/net/netfilter/nf_conntrack_tcp_"
	conntrackUDP = "proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	// hashSize is the same setting as kube-proxy's /sys/module/nf_conntrack/parameters/hashsize, without a writable
	// /sys.
	hashSize = "proc/sys/net/netfilter/nf_conntrack_buckets"
	// mostConnections limits the number on machines with many CPUs: each takes some 300 bytes (kubernetes issue
	// 126130).
	mostConnections = 1 << 20
)

// Set writes the values that differ below a root directory. It returns the written values and the errors of others. The
// hash table gets a bucket for every four connections. Neither the limit nor the table is made smaller.
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
	// A namespace without its own limit must not change the machine's hash table either.
	if n := c.max(cpus()); n > 0 && write(conntrackMax, n, atLeast(n)) {
		write(hashSize, n/4, atLeast(n/4))
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

// max returns the number of connections to track, 0 to keep the limit.
func (c Conntrack) max(cpus int) int {
	switch {
	case c.MaxPerCore <= 0:
		return 0
	case c.MaxPerCore*cpus > mostConnections:
		return mostConnections
	}
	return max(c.MaxPerCore*cpus, c.Min)
}

// cpus is the number of CPUs of the machine, which may be more than this process may use.
func cpus() int {
	if n, err := cpuset.NumCPU(); err == nil && n > 0 {
		return n
	}
	return runtime.NumCPU()
}

func atLeast(want int) func(int) bool { return func(now int) bool { return now >= want } }

func same(want int) func(int) bool { return func(now int) bool { return now == want } }

// ensure writes a number to a file unless enough returns true for the present one.
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
	if err := os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644); err != nil { //nolint:gosec // the file exists
		return false, fmt.Errorf("set sysctl from %s to %d: %w", strings.TrimSpace(string(text)), value, err)
	}
	return true, nil
}

// SetOOMScore sets oom_score_adj of this process, -1000 to 1000.
func SetOOMScore(root string, score int) error {
	_, err := ensure(root, "proc/self/oom_score_adj", score, same(score))
	return err
}
