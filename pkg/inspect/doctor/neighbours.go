package doctor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// neighbours finds full neighbour tables. All network namespaces share the tables, and only the first one has their
// statistics and limits.
func (c *Config) neighbours() (list view.Findings) {
	for f, table := range [...]string{"arp_cache", "ndisc_cache"} {
		statistics, err := os.ReadFile("/proc/thread-self/net/stat/" + table)
		if family := inet.Family(f); err == nil && c.serves(family) {
			list = append(list, c.fullNeighbours(family, string(statistics))...)
		}
	}
	return list
}

// fullNeighbours returns a finding if a neighbour table has refused entries, and is nearly full. A refusal alone may be
// from an earlier day. A number alone may be harmless: permanent entries, as flannel adds them, are not limited.
func (c *Config) fullNeighbours(family inet.Family, statistics string) view.Findings {
	limit := fmt.Sprintf("net/%s/neigh/default/gc_thresh3", strings.ToLower(family.String()))
	most, limited := c.number(limit)
	entries, refused := slices.Max(append(column(statistics, "entries"), 0)), uint64(0)
	for _, n := range column(statistics, "table_fulls") {
		refused += n
	}
	if !limited || most <= 0 || refused == 0 || 100*entries < nearlyFull*uint64(most) {
		return nil
	}
	return view.Findings{view.NewFinding(view.Warning, view.NeighboursFull, c.node(),
		fmt.Sprintf("the table of %s neighbours has %d of %d entries, and has refused %d since the boot",
			family, entries, most, refused),
		"packets to pods and hosts that are not in the table are lost, not only those of Services (kernel log: "+
			"\"neighbour: "+[...]string{"arp", "ndisc"}[family]+"_cache: neighbor table "+
			"overflow!\")",
		c.on(fmt.Sprintf("sysctl -w %s=%d. To see the entries: ip neigh", dotted(limit), 4*most)),
		"all network namespaces of this node, until the next boot")}
}

// column returns a column of a file in /proc/net/stat: a line of names, then a line of hexadecimal numbers for each
// processor.
func column(statistics, name string) (list []uint64) {
	lines := strings.Split(statistics, "\n")
	at := slices.Index(strings.Fields(lines[0]), name)
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if at < 0 || at >= len(fields) {
			continue
		}
		if n, err := strconv.ParseUint(fields[at], 16, 64); err == nil {
			list = append(list, n)
		}
	}
	return list
}
