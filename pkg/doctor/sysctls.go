package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// sysctls checks the settings. It skips missing ones: the kernel lacks the feature.
func (c *Config) sysctls() (list []view.Finding) {
	if slices.Contains(c.Families, inet.IPv4) {
		list = append(list, c.forwarding("IPv4", "net/ipv4/ip_forward")...)
		list = append(list, c.someForward()...)
		list = append(list, c.reversePath()...)
	}
	if slices.Contains(c.Families, inet.IPv6) {
		list = append(list, c.forwarding("IPv6", "net/ipv6/conf/all/forwarding")...)
	}
	return append(append(list, c.connections()...), c.liberal()...)
}

// number reads a setting.
func (c *Config) number(name string) (n int, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.Sysctls, name))
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil
}

func (c *Config) forwarding(family, name string) []view.Finding {
	if n, ok := c.number(name); !ok || n != 0 {
		return nil
	}
	return []view.Finding{{
		Severity: view.Wrong, What: fmt.Sprintf("this node does not forward %s packets (%s = 0)", family, dotted(name)),
		Impact: "pods and external clients cannot reach Services. Processes on the node are not affected", Fix: "sysctl -w " + dotted(name) + "=1",
	}}
}

// someForward finds interfaces without forwarding. IPv6 settings of interfaces have another meaning.
func (c *Config) someForward() []view.Finding {
	const folder = "net/ipv4/conf"
	if n, ok := c.number("net/ipv4/ip_forward"); !ok || n == 0 {
		return nil // then all interfaces are off
	}
	var names []string
	for _, name := range c.interfaces(folder) {
		if n, ok := c.number(folder + "/" + name + "/forwarding"); ok && n == 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []view.Finding{{
		Severity: view.Warning, What: fmt.Sprintf("this node does not forward IPv4 packets that arrive by %s (forwarding = 0)", some(names)),
		Impact: "pods and clients behind these interfaces cannot reach Services, and replies of endpoints behind them are lost",
		Fix:    "sysctl -w net.ipv4.conf." + strings.ReplaceAll(names[0], ".", "/") + ".forwarding=1",
	}}
}

// interfaces returns the interfaces with their own settings, except loopback.
func (c *Config) interfaces(folder string) (names []string) {
	entries, err := os.ReadDir(filepath.Join(c.Sysctls, folder))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !slices.Contains([]string{"all", "default", "lo"}, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// some names the first few.
func some(names []string) string {
	const few = 4
	text := strings.Join(names[:min(few, len(names))], ", ")
	if more := len(names) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// reversePath finds interfaces that drop packets whose replies would leave by another interface. The stricter one of an
// interface's own setting and that of all applies, but 2 overrides 1.
func (c *Config) reversePath() []view.Finding {
	const folder = "net/ipv4/conf"
	all, _ := c.number(folder + "/all/rp_filter")
	var strict []string
	for _, name := range c.interfaces(folder) {
		if own, ok := c.number(folder + "/" + name + "/rp_filter"); ok && max(own, all) == 1 {
			strict = append(strict, name)
		}
	}
	if len(strict) == 0 {
		return nil
	}
	return []view.Finding{{
		Severity: view.Note, What: "strict reverse path filtering (rp_filter = 1) on " + some(strict),
		Impact: "on nodes with several networks, and in some pod networks, the kernel drops packets that arrive by another interface than the route back " +
			"uses: replies of endpoints, and requests to node ports. On other nodes, none",
		Fix: "sysctl -w net.ipv4.conf.all.rp_filter=2",
	}}
}

// Limits for the use of the connection table, in percent.
const (
	fullish = 80
	full    = 95
)

func (c *Config) connections() []view.Finding {
	n, known := c.number("net/netfilter/nf_conntrack_count")
	most, limited := c.number("net/netfilter/nf_conntrack_max")
	if !known || !limited || most <= 0 || 100*n < fullish*most {
		return nil
	}
	severity := view.Warning
	if 100*n >= full*most {
		severity = view.Wrong
	}
	return []view.Finding{{
		Severity: severity, What: fmt.Sprintf("connection tracking is %d %% full (%d of %d connections)", 100*n/most, n, most),
		Impact: "when the table is full, the kernel drops all new connections, not only connections to Services (kernel log: \"nf_conntrack: table full, dropping packet\")",
		Fix: fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d, and set conntrack.maxPerCore or conntrack.min in the configuration; "+
			"conntrack -L lists the connections", 2*most),
	}}
}

func (c *Config) liberal() []view.Finding {
	if n, ok := c.number("net/netfilter/nf_conntrack_tcp_be_liberal"); !ok || n != 0 {
		return nil
	}
	return []view.Finding{{
		Severity: view.Note, What: "the kernel treats TCP packets outside the window as invalid (nf_conntrack_tcp_be_liberal = 0)",
		Impact: "long transfers on lossy networks may be reset: such a packet is not translated back, and its receiver resets the connection",
		Fix:    "set conntrack.tcpBeLiberal: true in the configuration, or run sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1",
	}}
}

// dotted returns a setting's name in the form of sysctl.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }
