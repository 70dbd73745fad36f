package matrix

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var update = flag.Bool("update", false, "write docs/semantics.md")

// page is the documentation page with the rules.
var page = filepath.Join("..", "..", "docs", "semantics.md")

// target is a kind of address with the policy that applies to it.
type target struct {
	name     string
	dests    []destination
	policy   policy
	services func(policy, placement) []service
}

// targets are the rows of the page. The policy that does not apply to an address has both values.
func targets() (all []target) {
	internal := func(p policy, where placement) []service {
		return []service{{p, cluster, where, false}, {p, local, where, false}}
	}
	external := func(p policy, where placement) []service {
		return []service{{cluster, p, where, false}, {local, p, where, false}}
	}
	for _, p := range policies {
		all = append(all, target{"ClusterIP, internalTrafficPolicy " + string(p), destinations[:1], p, internal})
	}
	for _, p := range policies {
		all = append(all, target{"NodePort, externalIP, LB IP, externalTrafficPolicy " + string(p), destinations[1:], p, external})
	}
	return all
}

// columns are the clients of the page. The node appears only with its second address: from the first one, endpoints see the same source
// address with and without masquerading.
var columns = []client{pod, secondary, outside, remote, itself, remoteItself}

var headings = map[client]string{
	pod: "a pod on this node", secondary: "this node", outside: "an external client", remote: "a pod on another node",
	itself: "an endpoint on this node", remoteItself: "an endpoint on another node",
}

// result returns the text of one cell of the page. It fails if the cells of the matrix that it stands for differ.
func (tg target) result(t *testing.T, m mode, who client, where placement) string {
	t.Helper()
	texts := map[string]bool{}
	for _, svc := range tg.services(tg.policy, where) {
		for _, dest := range tg.dests {
			for _, family := range inet.Families {
				for _, protocol := range m.protocols() {
					texts[describe(cell{m, svc, dest, who, family, protocol, served})] = true
				}
			}
		}
	}
	if len(texts) != 1 {
		t.Errorf("[%s] %s -> %s, endpoints %s: one cell of the page stands for different results: %q", m, who, tg.name, where, slices.Sorted(maps.Keys(texts)))
	}
	return slices.Sorted(maps.Keys(texts))[0]
}

// describe lists the endpoints with the sources that they see, for example "all, kept; itself: node".
func describe(c cell) string {
	if !c.possible() {
		return ""
	}
	w := want(c)
	if w.verdict != "" {
		return string(w.verdict)
	}
	own, _ := c.host()
	sources := map[string]bool{}
	apart := ""
	for host, o := range w.endpoints {
		_, source, found := strings.Cut(string(o), " from ")
		if !found {
			source = string(o)
		}
		if host == own && c.client != secondary {
			apart = source
		} else {
			sources[source] = true
		}
	}
	text := "all"
	if len(w.endpoints) < len(c.service.placement.hosts()) {
		text = "local"
	}
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		text += ", " + source
	}
	switch {
	case len(sources) == 0:
		return "itself, " + apart
	case apart == "" || sources[apart]:
		return text
	}
	return text + "; itself: " + apart
}

// change describes the difference of a cell in another mode, or returns "" if there is none.
func change(before, after wanted) string {
	for host, o := range after.endpoints {
		switch {
		case before.endpoints[host] == o:
		case o == reached(host, fromNode):
			return "endpoints see the node's address"
		case o == reached(host, kept):
			return "endpoints see the client's own address"
		default:
			return "from " + before.String() + " to " + after.String()
		}
	}
	if before.verdict == after.verdict && len(before.endpoints) == len(after.endpoints) {
		return ""
	}
	if len(before.endpoints) > len(after.endpoints) && (after.verdict == "" || after.verdict == dropped) {
		return "reaches only endpoints on this node; dropped if there are none"
	}
	return "from " + before.String() + " to " + after.String()
}

// changes returns the differences between modes a and b as rows of a table: for each change, the affected clients at each of the
// targets. Targets with the same clients are merged.
func changes(a, b mode) string {
	type row struct{ change, from string }
	var rows []row
	to := map[row][]string{}
	for _, tg := range targets() {
		from := map[string][]string{}
		var order []string
		for _, who := range columns {
			for _, change := range tg.changes(a, b, who) {
				if from[change] == nil {
					order = append(order, change)
				}
				from[change] = append(from[change], headings[who])
			}
		}
		for _, change := range order {
			r := row{change, strings.Join(from[change], ", ")}
			if to[r] == nil {
				rows = append(rows, r)
			}
			to[r] = append(to[r], tg.name)
		}
	}
	var text strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", strings.Join(to[r], "; "), r.from, r.change)
	}
	return text.String()
}

// changes lists the differences for a client, in any placement.
func (tg target) changes(a, b mode, who client) []string {
	all := map[string]bool{}
	for _, p := range placements {
		for _, svc := range tg.services(tg.policy, p) {
			before := cell{mode: a, service: svc, dest: tg.dests[0], client: who, protocol: inet.TCP}
			after := before
			after.mode = b
			if before.possible() {
				all[change(want(before), want(after))] = true
			}
		}
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// preface defines the words of the page.
const preface = `# The destination of a packet to a Service

This page is for operators and developers. It lists the endpoints that a packet to a Service reaches, and the source address that
they see. The result depends on the kind of address, the traffic policy, the client, and the placement of the endpoints.

` + "`go test ./test/matrix -update`" + ` writes this page. In ` + "`make test`" + `, packets prove the tables, for IPv4 and IPv6, TCP and UDP (and SCTP in the
first table): %s combinations in %d modes. In eight of the modes, all Services have an algorithm, weights, or a maximum of
connections with slow start. In five of the modes, the program has the flags for [unused ports, ping](vips.md) and [termination](stale-connections.md), and
counts no connections. None of these settings changes a row. ` + "`make test-twin`" + ` sends the same packets through the real kube-proxy, without them.

The cells of the tables use these words:

| word | meaning |
|---|---|
| **all** | every endpoint of the Service may get the connection |
| **local** | only an endpoint on this node may get the connection |
| **refused** | the client gets a TCP reset or ICMP port unreachable |
| **dropped** | the client gets no answer |
| **kept** | the endpoint sees the client's own address |
| **node** | the endpoint sees this node's address (masqueraded) |
| **itself** | the client is an endpoint, and the packet returns to it; the next word is the source address that it sees, or *dropped* |

The column *endpoints* has the placement of the Service's endpoints: on this node (local), on other nodes (remote), on both, or this node itself
(host network). The other columns are the clients. Read them with these facts:

- If a Service has no endpoints, every address refuses every client, regardless of the policies. If it [scales to zero](scale-to-zero.md), every address drops
  the packets instead, for two minutes: [scale-to-zero](../test/scenario/testdata/scale-to-zero.txtar).
- *This node* is a process that sends from the node's second address. A process that sends from the first address reaches the same endpoints.
  The endpoints always see the first address, with and without masquerading.
- *An endpoint on another node* sends a packet to a Service through this node. If this node selects the same endpoint and does not masquerade, the
  packet returns to the endpoint with the endpoint's own address as its source. The endpoint drops it. In a cluster, the proxy on the
  endpoint's own node handles the packet first, and masquerades it.

With session affinity, all connections of one client reach the same endpoint, at all addresses of the service port. If a traffic policy excludes this
endpoint at one of the addresses, the client gets another endpoint there, and keeps the new endpoint at all addresses. There is one exception: if no endpoint
is permitted at both addresses, a client that alternates between the addresses gets a new endpoint each time. This occurs if topology hints select no
endpoint of this node.
`

// text returns the content of the page.
func text(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	cells := 0
	for _, m := range modes() {
		all, _ := groups(m)
		for _, g := range all {
			cells += len(g)
		}
	}
	fmt.Fprintf(&b, preface, thousands(cells), len(modes()))
	b.WriteString("\n## With a `--cluster-cidr` that contains all pods\n\n| to | endpoints |")
	for _, who := range columns {
		fmt.Fprintf(&b, " from %s |", headings[who])
	}
	b.WriteString("\n" + strings.Repeat("|---", len(columns)+2) + "|\n")
	for _, tg := range targets() {
		for _, p := range placements {
			if p == nowhere {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s |", tg.name, p)
			for _, who := range columns {
				fmt.Fprintf(&b, " %s |", tg.result(t, base, who, p))
			}
			b.WriteString("\n")
		}
	}
	for _, m := range modes()[1:] {
		for _, tg := range targets() {
			for _, p := range placements {
				for _, who := range columns {
					tg.result(t, m, who, p) // fails if one cell of the page stands for different results
				}
			}
		}
	}
	b.WriteString("\n## Changes with other flags\n\nThe sections with `--masquerade-all` also list the changes that this flag makes.\n")
	sections(&b, "", func(m mode) (mode, bool) { return base, !m.masqueradeAll && m != base })
	sections(&b, "With `--masquerade-all`: ", func(m mode) (mode, bool) { return mode{m.detector, false, random}, m.masqueradeAll })
	b.WriteString(combinationsHead)
	for _, row := range combinations(t) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	cells = 0
	for _, m := range vipModes() {
		cells += len(vipGroups(m))
	}
	addresses := fmt.Sprintf(addressesHead, thousands(cells), len(vipModes()))
	for _, part := range [][2]string{{maximumsHead, "max-connections*"}, {addresses, "vips-*"}, {rangesHead, "port-ranges*"}, {directHead, "direct-*"}} {
		b.WriteString(part[0])
		for _, row := range behaviours(t, part[1]) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	b.WriteString(rangedPart(t))
	b.WriteString(sourceRanges)
	b.WriteString(establishedPart)
	return b.String()
}

// maximumsHead is the head of the section about maximums.
const maximumsHead = `
## With a connection limit

Each endpoint of a Service can have a [connection limit](algorithms.md#connection-limit). Packets of these scenarios prove each row:

| scenario | behaviour |
|---|---|
`

// addressesHead is the head of the section about addresses.
const addressesHead = `
## Unused ports and ping

The flags of [vips.md](vips.md) change the results for packets that are not sent to a port of a Service. For each Service without session affinity, the matrix
sends echo requests and packets to unused ports, from each client to the cluster IP, external IP and load-balancer IP: %s combinations in %d modes. Packets of
these scenarios prove each row:

| scenario | behaviour |
|---|---|
`

// rangesHead is the head of the section about port ranges.
const rangesHead = `
## With port ranges

A Service with [port ranges](port-ranges.md) serves further ports. Packets of these scenarios prove each row:

| scenario | behaviour |
|---|---|
`

// directHead is the head of the section about direct server return.
const directHead = `
## With direct server return

[Direct server return](dsr.md) needs other nodes. Packets of this scenario prove what one node does:

| scenario | behaviour |
|---|---|
`

// rangedPart is the part of the section about port ranges with the modes of the matrix that have them.
func rangedPart(t *testing.T) string {
	t.Helper()
	cells, denied := 0, map[destination]map[client]bool{}
	for _, m := range rangedModes() {
		all, _ := groups(m)
		for _, g := range all {
			cells += len(g)
			for _, c := range g {
				plain := c
				plain.mode.choice = random
				switch got := want(c); {
				case slices.Equal(got.outcomes(), want(plain).outcomes()), m.choice == rangesHashed && !c.service.affinity && slices.Contains(want(plain).outcomes(), got.outcomes()[0]):
				case m.choice == ranges && c.service.placement == nowhere && got.verdict == dropped:
				case m.choice == rangesSources && got.verdict == dropped:
					if denied[c.dest] == nil {
						denied[c.dest] = map[client]bool{}
					}
					denied[c.dest][c.client] = true
				default:
					t.Errorf("%s: %s with a range, %s with a port", c, got, want(plain))
				}
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, rangedHead, thousands(cells), len(rangedModes()))
	for _, dest := range destinations {
		var names []string
		for _, who := range clients {
			if denied[dest][who] {
				names = append(names, headings[who])
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "| %s | %s |\n", dest, strings.Join(names, ", "))
		}
	}
	return b.String()
}

// rangedHead is the text before the table of rangedPart.
const rangedHead = `
The matrix also sends packets to ranges: %s combinations in %d modes. The results are those of the first table and of its changes with other flags, with
session affinity and without, with a random choice and with source-hash. There are two exceptions:

- Without endpoints, a Service that [scales to zero](scale-to-zero.md) drops the packets.
- [Source ranges](source-ranges.md) apply. In one mode, all Services deny the external client, and their external IPs admit no pods of other nodes. These
  clients are dropped:

| range at | clients that are dropped |
|---|---|
`

// behaviours returns a row for each scenario with a name: its comment.
func behaviours(t *testing.T, name string) (rows [][]string) {
	t.Helper()
	paths, err := filepath.Glob("../scenario/testdata/" + name + ".txtar")
	lab.Must(t, err)
	for _, path := range paths {
		file, err := txtar.ParseFile(path)
		lab.Must(t, err)
		name := filepath.Base(path)
		rows = append(rows, []string{fmt.Sprintf("[%s](../test/scenario/testdata/%s)", strings.TrimSuffix(name, ".txtar"), name),
			strings.Join(strings.Fields(string(file.Comment)), " ")})
	}
	return rows
}

// establishedPart is the part about established connections. A test of its own proves each row.
const establishedPart = `
## Established TCP connections

The kernel keeps the endpoint of an established connection, regardless of later changes. The program terminates connections only if [configured](stale-connections.md):

| endpoint of the connection | without termination | with termination | proof |
|---|---|---|---|
| not ready, not serving, or terminating | stays | stays | [TestConnectionsToGoneEndpoints](../test/scenario/terminate_test.go) |
| absent from the EndpointSlices of the Service for less than 5 s | stays | stays | the same; [TestDepartures](../pkg/beside/conntrack/departures_test.go) |
| absent for 5 s, while the Service has other endpoints | stays | reset by another endpoint after the client's next segment | the same |
| absent for 5 s, while the Service has no endpoint | stays | reset by the node, at the same time | the same |
| left before the program started | stays | stays | the same |
`

const combinationsHead = `
## With an algorithm or weights

With an [algorithm](algorithms.md) or weights, a connection reaches one of the endpoints that it may reach without them. An endpoint of weight 0 is not among
them. Slow start gives a new endpoint a smaller share. With a [connection limit](algorithms.md#connection-limit), a connection reaches an
endpoint that is not full, or is refused. Packets prove each row, for IPv4 and IPv6:

| feature | with an algorithm | with weights | proof |
|---|---|---|---|
| Health check port | No effect: all ready endpoints on the node count. | An endpoint of weight 0 does not count. | [TestHealthCheckNodePort](../test/e2e/healthcheck_test.go) |
`

// combinations returns the rows of features with an algorithm and with weights: each is the beginning of a scenario, whose packets prove the row.
func combinations(t *testing.T) (rows [][]string) {
	t.Helper()
	const folder = "../scenario/testdata/"
	paths, err := filepath.Glob(folder + "algorithms*.txtar")
	lab.Must(t, err)
	for _, path := range paths {
		file, err := txtar.ParseFile(path)
		lab.Must(t, err)
		lines := strings.Split(strings.TrimSpace(string(file.Comment)), "\n")
		algorithm, first := strings.CutPrefix(lines[min(1, len(lines)-1)], "With an algorithm: ")
		weights, second := strings.CutPrefix(lines[len(lines)-1], "With weights: ")
		if len(lines) != 3 || !first || !second {
			t.Fatalf("%s begins with %q, want a feature, a line \"With an algorithm: ...\" and a line \"With weights: ...\"", path, lines)
		}
		name := filepath.Base(path)
		sentence := func(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
		rows = append(rows, []string{lines[0], sentence(algorithm), sentence(weights), fmt.Sprintf("[%s](../test/scenario/testdata/%s)", strings.TrimSuffix(name, ".txtar"), name)})
	}
	return rows
}

// sections writes a section for each mode that choose selects: the differences from the mode that choose returns. Modes with the same
// differences share a section.
func sections(b *strings.Builder, flags string, choose func(mode) (mode, bool)) {
	modesOf := map[string][]string{}
	var order []string
	for _, m := range modes() {
		from, chosen := choose(m)
		if !chosen {
			continue
		}
		rows := changes(from, m)
		if modesOf[rows] == nil {
			order = append(order, rows)
		}
		modesOf[rows] = append(modesOf[rows], string(m.detector))
	}
	for _, rows := range order {
		names := strings.Join(modesOf[rows], ", ")
		fmt.Fprintf(b, "\n### %s%s\n\n| to | from | change |\n|---|---|---|\n%s", flags, names, rows)
	}
}

// thousands formats a number with separators.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// skipUpdate skips a test that does not write the page if -update is set.
func skipUpdate(t *testing.T) {
	t.Helper()
	if *update {
		t.Skip("-update only writes the page")
	}
}

// TestSemantics compares the page with the oracle, which the other tests confirm.
func TestSemantics(t *testing.T) {
	want := text(t)
	if t.Failed() {
		return
	}
	if *update {
		lab.Must(t, os.WriteFile(page, []byte(want), 0o644))
	}
	got, err := os.ReadFile(page)
	lab.Must(t, err)
	lab.Same(t, want, string(got), "%s isn't what -update would write", page)
}
