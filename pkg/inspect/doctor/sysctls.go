package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// sysctls checks the sysctls. It skips missing sysctls, because the kernel then lacks the feature. dropped is the
// number of packets that the kernel has dropped by reverse path filtering.
func (c *Config) sysctls(networks *host.Networks, dropped uint64) (list view.Findings) {
	ifZero := func(name string, finding view.Finding) {
		if n, ok := c.number(name); ok && n == 0 {
			list = append(list, finding)
		}
	}
	for f, name := range [...]string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if family := inet.Family(f); c.serves(family) {
			ifZero(name, view.NewFinding(view.Wrong, view.ForwardingDisabled, c.node(),
				fmt.Sprintf("this node does not forward %s packets (%s = 0)", family, dotted(name)),
				"pods and external clients cannot reach Services. Processes on the node are not affected",
				c.on("sysctl -w "+dotted(name)+"=1"),
				fmt.Sprintf("all %s packets that this node forwards, also those of other programs, until the next "+
					"boot; the pod network needs the same setting", family)))
		}
	}
	if c.serves(inet.IPv4) {
		list = slices.Concat(list, c.someForward(), c.reversePath(networks, dropped))
	}
	list = slices.Concat(list, c.connections(), c.neighbours())
	ifZero("net/netfilter/nf_conntrack_tcp_be_liberal", view.NewFinding(view.Note, view.ConntrackStrict, c.node(),
		"the kernel treats TCP packets outside the window as invalid (nf_conntrack_tcp_be_liberal = 0)",
		"long transfers on lossy networks may be reset: such a packet is not translated back, and its receiver "+
			"resets the connection",
		c.on("sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1. conntrack.tcpBeLiberal: true in the "+
			"configuration has the same effect at each start"),
		"all TCP connections of this node: rules that drop packets in state invalid no longer match such packets"))
	// With this setting of the kernel, the program cannot terminate connections.
	ifZero("net/netfilter/nf_conntrack_tcp_loose", view.NewFinding(view.Note, view.ConntrackNotLoose, c.node(),
		"the kernel tracks only TCP connections that begin with a SYN (nf_conntrack_tcp_loose = 0)",
		"with --terminate-connections or its annotation, connections to endpoints that left the slices stay. "+
			"Otherwise, none",
		c.on("sysctl -w net.netfilter.nf_conntrack_tcp_loose=1"),
		"TCP segments of connections that the kernel does not track: rules that drop packets in state invalid no "+
			"longer match them"))
	return list
}

// number reads a sysctl. ok is false if the sysctl is missing, or is not a number.
func (c *Config) number(name string) (n int, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.Sysctls, name))
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil
}

// someForward finds interfaces that do not forward IPv4. For IPv6, the setting of an interface has another meaning.
func (c *Config) someForward() view.Findings {
	if n, ok := c.number("net/ipv4/ip_forward"); !ok || n == 0 {
		return nil // no interface forwards: another finding reports it
	}
	var names []string
	for _, name := range c.interfaces() {
		if n, ok := c.number(ipv4Conf + "/" + name + "/forwarding"); ok && n == 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return view.Findings{view.NewFinding(view.Warning, view.InterfaceForwardingDisabled, c.node(),
		fmt.Sprintf("this node does not forward IPv4 packets that arrive by %s (forwarding = 0)", view.Names(names, 0)),
		"pods and clients behind these interfaces cannot reach Services, and replies of endpoints behind them are lost",
		c.on("sysctl -w net.ipv4.conf."+strings.ReplaceAll(names[0], ".", "/")+".forwarding=1"),
		"all IPv4 packets that arrive by "+names[0]+", until the interface is deleted or the node reboots")}
}

// interfaces returns the names of the interfaces that have IPv4 settings, except loopback.
func (c *Config) interfaces() (names []string) {
	entries, err := os.ReadDir(filepath.Join(c.Sysctls, ipv4Conf))
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

const (
	// nearlyFull and full are percentages of the connection table. From nearlyFull, the finding is a warning. From
	// full, its severity is wrong.
	nearlyFull = 80
	full       = 95
	// entrySize is the memory of a connection in the kernel, in bytes, rounded up.
	entrySize = 512
)

func (c *Config) connections() view.Findings {
	n, known := c.number("net/netfilter/nf_conntrack_count")
	most, limited := c.number("net/netfilter/nf_conntrack_max")
	if !known || !limited || most <= 0 || 100*n < nearlyFull*most {
		return nil
	}
	severity := view.Warning
	if 100*n >= full*most {
		severity = view.Wrong
	}
	return view.Findings{view.NewFinding(severity, view.ConntrackFull, c.node(),
		fmt.Sprintf("connection tracking is %d %% full (%d of %d connections)", 100*n/most, n, most),
		"when the table is full, the kernel drops all new connections, not only connections to Services (kernel log: "+
			"\"nf_conntrack: table full, dropping packet\")",
		c.on(fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d. To see the clients with many connections: "+
			"conntrack -L", 2*most)),
		fmt.Sprintf("a full table takes up to %d MiB more memory of this node. The program sets its own limit at its "+
			"next start, unless conntrack.maxPerCore is 0",
			most*entrySize>>20))}
}

// dotted returns the name of a sysctl with dots, as the command sysctl prints it.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }
