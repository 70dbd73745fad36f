package scenario

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// semantics is the page with the outcomes of the matrix.
const semantics = "../../docs/semantics.md"

// TestSemantics compares the generated parts of the page with the oracle, which TestMatrix and TestHistories confirm.
func TestSemantics(t *testing.T) {
	o := &forecast{t, map[mode]*oracle.Oracle{}}
	for name, want := range map[string]string{
		"destinations": o.table(), "changes": o.changes(), "ranged": o.denied(), "algorithms": algorithmRows(t),
		"limits": scenarioRows(t, "max-connections*"), "addresses": scenarioRows(t, "vips-*"), "ranges": scenarioRows(t, "port-ranges*"),
		"direct": scenarioRows(t, "direct-*"), "hostports": scenarioRows(t, "host-ports*"), "redirect": scenarioRows(t, "local-redirect*"),
		"exposure": scenarioRows(t, "exposure*"), "clusters": scenarioRows(t, "multi-cluster*"),
	} {
		if *update {
			lab.Must(t, page.Write(semantics, name, want))
		}
		text, err := os.ReadFile(semantics)
		lab.Must(t, err)
		got, err := page.Part(string(text), name)
		lab.Must(t, err)
		lab.Same(t, want, got, "part %s of %s isn't what -update would write", name, semantics)
	}
}

// forecast asks the oracle about cells.
type forecast struct {
	*testing.T
	oracles map[mode]*oracle.Oracle
}

// result is the prediction for a cell: refused, dropped, or the source address that each endpoint sees: kept, node or
// dropped.
type result struct {
	outcome string
	sees    map[string]string
}

func (o *forecast) result(c cell) result {
	o.Helper()
	q := c.question()
	p := oracle.Packet{From: q.source, Device: c.deviceOf(q.from), To: q.to, Protocol: q.protocol}
	if !p.From.IsValid() {
		p.From = lab.AddressOf(q.from, c.family)
	}
	v := o.of(c.mode).Ask(p)
	switch v.Outcome {
	case oracle.Answered:
	case oracle.NotService: // the default route leads to the external client, which has no such address
		return result{outcome: "dropped"}
	default:
		return result{outcome: string(v.Outcome)}
	}
	r := result{sees: map[string]string{}}
	for _, e := range v.Endpoints {
		seen := "node"
		switch {
		case !e.Sees.IsValid():
			seen = "dropped"
		case e.Sees == p.From && c.caller.heading != "this node's first address":
			seen = "kept"
		}
		r.sees[hostAt(e.Addr(), c.family)] = seen
	}
	return r
}

// of returns an oracle for the objects of a mode.
func (o *forecast) of(m mode) *oracle.Oracle {
	o.Helper()
	if o.oracles[m] == nil {
		s, err := parseSettings(m.flags())
		lab.Must(o.T, err)
		text, err := os.ReadFile(common)
		lab.Must(o.T, err)
		texts := []string{string(text)}
		for _, objects := range m.objects() {
			texts = append(texts, objects.yaml())
		}
		list, err := readObjects(strings.Join(texts, "---\n"))
		lab.Must(o.T, err)
		var all oracle.Objects
		for _, o := range list {
			all.Add(o)
		}
		o.oracles[m] = oracle.New(all, s.machine(func(netip.Addr) string { return m.deviceOf("client") }))
	}
	return o.oracles[m]
}

// deviceOf returns the node's interface for a host's packets.
func (m mode) deviceOf(host string) string {
	kind, number, _ := strings.Cut(host, "-")
	switch {
	case host == "node":
		return ""
	case kind == "pod" && m.detector == byBridge:
		return bridge
	case kind == "client":
		return "eth0"
	}
	return "veth-" + kind + number
}

func hostAt(addr netip.Addr, f inet.Family) string {
	for _, name := range []string{"node", "pod-0", "pod-1", "remote-0", "remote-1"} {
		if lab.AddressOf(name, f) == addr {
			return name
		}
	}
	return addr.String()
}

// target is a kind of address with a policy that applies to it.
type target struct {
	name, policy string
	dests        []destination
}

var targets = []target{
	{"ClusterIP, internalTrafficPolicy Cluster", "Cluster", destinations[:1]},
	{"ClusterIP, internalTrafficPolicy Local", "Local", destinations[:1]},
	{"NodePort, externalIP, LB IP, externalTrafficPolicy Cluster", "Cluster", destinations[1:]},
	{"NodePort, externalIP, LB IP, externalTrafficPolicy Local", "Local", destinations[1:]},
}

// variants returns the Services of a row of the page: the policy that does not apply to the address has both values.
func (tg target) variants(placement string) (all []variant) {
	for _, v := range variants {
		policy := v.external
		if tg.dests[0] == toClusterIP {
			policy = v.internal
		}
		if policy == tg.policy && v.placement == placement && !v.affinity {
			all = append(all, v)
		}
	}
	return all
}

// columns are the callers of the page.
var columns = callers[:6]

// text returns one cell of the page, for example "all, kept; itself: node". It fails if the cells of the matrix differ
// for which it stands.
func (o *forecast) text(m mode, tg target, placement string, who caller) string {
	o.Helper()
	if who.host == "pod-0" && placement == "host network" {
		who = callers[6] // the endpoint is the node itself
	}
	texts := map[string]bool{}
	for _, v := range tg.variants(placement) {
		for _, dest := range tg.dests {
			for _, family := range inet.Families {
				for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
					if c := (cell{m, v, dest, who, family, protocol}); c.possible() {
						texts[o.describe(c)] = true
					}
				}
			}
		}
	}
	list := slices.Sorted(maps.Keys(texts))
	if len(list) > 1 {
		o.Errorf("%s: %s, endpoints %s, from %s: one cell of the page stands for different outcomes: %q", m, tg.name, placement, who, list)
	}
	return strings.Join(list, " or ")
}

func (o *forecast) describe(c cell) string {
	r := o.result(c)
	if r.outcome != "" {
		return r.outcome
	}
	own, sources, apart := c.caller.host, map[string]bool{}, ""
	for host, seen := range r.sees {
		if host == own && c.caller.heading != "this node" {
			apart = seen
		} else {
			sources[seen] = true
		}
	}
	text := "all"
	if len(r.sees) < len(hosts[c.placement]) {
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

// table returns the outcomes in the basic mode. It checks that all other modes fit into such a table.
func (o *forecast) table() string {
	o.Helper()
	var b strings.Builder
	b.WriteString("| to | endpoints |")
	for _, who := range columns {
		fmt.Fprintf(&b, " from %s |", who.heading)
	}
	b.WriteString("\n" + strings.Repeat("|---", len(columns)+2) + "|\n")
	for _, tg := range targets {
		for _, p := range placements[:4] {
			fmt.Fprintf(&b, "| %s | %s |", tg.name, p)
			for _, who := range columns {
				fmt.Fprintf(&b, " %s |", o.text(base, tg, p, who))
				for _, m := range modes() {
					o.text(m, tg, p, who)
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// changes returns a section for each other mode: its differences from the basic mode, or with masquerade-all from the
// mode without. Modes with the same differences share a section.
func (o *forecast) changes() string {
	detectorsOf := map[string][]string{}
	var order []string
	for _, m := range modes()[1:] {
		from, title := base, ""
		if m.masqueradeAll {
			from, title = mode{m.detector, false, random}, "With `--masquerade-all`: "
		}
		section := title + "%s\n\n| to | from | change |\n|---|---|---|\n" + o.rows(from, m)
		if detectorsOf[section] == nil {
			order = append(order, section)
		}
		detectorsOf[section] = append(detectorsOf[section], string(m.detector))
	}
	text := ""
	for _, section := range order {
		text += "\n### " + fmt.Sprintf(section, strings.Join(detectorsOf[section], ", "))
	}
	return text
}

// rows returns the differences between two modes: for each change, the callers at each of the targets. Targets with
// the same callers share a row.
func (o *forecast) rows(a, b mode) (text string) {
	to := map[string][]string{}
	var order []string
	for _, tg := range targets {
		from := map[string][]string{}
		var found []string
		for _, who := range columns {
			for _, change := range o.changesFrom(a, b, tg, who) {
				if from[change] == nil {
					found = append(found, change)
				}
				from[change] = append(from[change], who.heading)
			}
		}
		for _, change := range found {
			row := strings.Join(from[change], ", ") + " | " + change
			if to[row] == nil {
				order = append(order, row)
			}
			to[row] = append(to[row], tg.name)
		}
	}
	for _, row := range order {
		text += fmt.Sprintf("| %s | %s |\n", strings.Join(to[row], "; "), row)
	}
	return text
}

// changesFrom lists the differences for a caller, in any placement.
func (o *forecast) changesFrom(a, b mode, tg target, who caller) []string {
	all := map[string]bool{}
	for _, p := range placements {
		for _, v := range tg.variants(p) {
			c := cell{a, v, tg.dests[0], who, inet.IPv4, corev1.ProtocolTCP}
			if c.possible() {
				before := o.result(c)
				c.mode = b
				all[change(before, o.result(c))] = true
			}
		}
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// change describes the difference of a cell in another mode, or returns "" if there is none.
func change(before, after result) string {
	for host, seen := range after.sees {
		switch {
		case before.sees[host] == seen:
		case seen == "node":
			return "endpoints see the node's address"
		case seen == "kept":
			return "endpoints see the client's own address"
		}
	}
	switch {
	case len(before.sees) > len(after.sees) && after.outcome != "refused":
		return "reaches only endpoints on this node; dropped if there are none"
	case before.outcome == after.outcome && maps.Equal(before.sees, after.sees):
		return ""
	}
	return fmt.Sprintf("from %v to %v", before, after)
}

// denied returns the callers that source ranges deny in the modes with port ranges. It checks that all other packets
// to a range have the outcome of a packet to a port, except those to a Service without endpoints that scales to zero.
func (o *forecast) denied() string {
	o.Helper()
	denied := map[destination][]string{}
	for _, m := range playedModes() {
		if !m.choice.ranged() {
			continue
		}
		for _, c := range m.cells() {
			plain := c
			plain.choice = random
			got, want := o.result(c), o.result(plain)
			switch {
			case got.outcome == want.outcome && maps.Equal(got.sees, want.sees):
			case m.choice == ranges && c.placement == "none" && got.outcome == "dropped":
			case m.choice == rangesSources && got.outcome == "dropped":
				if !slices.Contains(denied[c.dest], c.caller.heading) {
					denied[c.dest] = append(denied[c.dest], c.caller.heading)
				}
			default:
				o.Errorf("%v: %v with a range, %v with a port", c, got, want)
			}
		}
	}
	text := "| range at | clients that are dropped |\n|---|---|\n"
	for _, d := range destinations {
		if len(denied[d]) > 0 {
			text += fmt.Sprintf("| %s | %s |\n", d, strings.Join(denied[d], ", "))
		}
	}
	return text
}

// described returns the lines of the comment of each scenario with such a name, and a link to the scenario.
func described(t *testing.T, name string) (links []string, comments [][]string) {
	t.Helper()
	paths, err := filepath.Glob("testdata/" + name + ".txtar")
	lab.Must(t, err)
	for _, path := range paths {
		s, err := readScenario(path)
		lab.Must(t, err)
		file := filepath.Base(path)
		links = append(links, fmt.Sprintf("[%s](../test/scenario/testdata/%s)", strings.TrimSuffix(file, ".txtar"), file))
		comments = append(comments, strings.Split(strings.TrimSpace(string(s.archive.Comment)), "\n"))
	}
	return links, comments
}

// scenarioRows returns a table of scenarios and their comments.
func scenarioRows(t *testing.T, name string) string {
	t.Helper()
	text := "| scenario | behaviour |\n|---|---|\n"
	links, comments := described(t, name)
	for i, link := range links {
		text += fmt.Sprintf("| %s | %s |\n", link, strings.Join(strings.Fields(strings.Join(comments[i], " ")), " "))
	}
	return text
}

// algorithmRows returns a table of features with an algorithm and with weights: the beginning of each scenario of
// algorithms.
func algorithmRows(t *testing.T) string {
	t.Helper()
	text := "| feature | with an algorithm | with weights | proof |\n|---|---|---|---|\n" +
		"| Health check port | No effect: all ready endpoints on the node count. | An endpoint of weight 0 does not count. | " +
		"[TestHealthCheckNodePort](../test/e2e/healthcheck_test.go) |\n"
	sentence := func(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
	links, comments := described(t, "algorithms*")
	for i, lines := range comments {
		if len(lines) != 3 {
			t.Fatalf("%s begins with %q, want three lines", links[i], lines)
		}
		algorithm, first := strings.CutPrefix(lines[1], "With an algorithm: ")
		weights, second := strings.CutPrefix(lines[2], "With weights: ")
		if !first || !second {
			t.Fatalf("%s has %q, want \"With an algorithm: ...\" and \"With weights: ...\"", links[i], lines)
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n", lines[0], sentence(algorithm), sentence(weights), links[i])
	}
	return text
}
