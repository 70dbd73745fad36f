package scenario

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var update = flag.Bool("update", false, "write the plans into the scenarios instead of comparing them")

// rig plays one scenario after another.
type rig struct {
	lab *lab.Lab
	// freshly and loaded are namespaces for tables without traffic.
	freshly, loaded *lab.Host
	programs        []program
	coverage        coverage
	// cluster is the plan of a cluster without Services.
	cluster []string
}

// Ports of the servers on every host except the clients. There are several, to check the endpoint's port.
const (
	firstPort, secondPort = 8080, 9090
	echoPort              = 7070
)

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{lab: newLab(t), coverage: coverage{}, programs: programs()}
	scratch := lab.ForTest(t, lab.Config{})
	r.freshly, r.loaded = scratch.Node, scratch.Client
	return r
}

// newLab returns a lab with all the servers.
func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	return newLabOf(t, lab.Config{Pods: 2, Remotes: 2, Clients: 2})
}

// newLabOf is newLab with other numbers of hosts.
func newLabOf(t *testing.T, c lab.Config) *lab.Lab {
	t.Helper()
	c.NodeAddrs = ownAddresses[2:]
	l := lab.ForTest(t, c)
	for _, h := range slices.Concat([]*lab.Host{l.Node}, l.Pods, l.Remotes) {
		mustServe(t, h)
	}
	return l
}

func mustServe(t *testing.T, h *lab.Host) {
	t.Helper()
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		for _, port := range []uint16{firstPort, secondPort} {
			if p == inet.SCTP && h.Device == "" {
				continue // an SCTP server on the node is a raw socket, which would prevent rejections by the node
			}
			lab.Must(t, lab.Err(h.Serve(p, port)))
		}
	}
	lab.Must(t, lab.Err(h.ServeEcho(echoPort)))
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find scenarios: %v, %d files", err, len(paths))
	}
	rigs := make(chan *rig, 4) // a scenario waits for half of its time
	first := newRig(t)
	first.checkCluster(t)
	rigs <- first
	for len(rigs) < cap(rigs) {
		r := newRig(t)
		r.cluster = first.cluster
		rigs <- r
	}
	ran := 0
	t.Cleanup(func() { // after the last scenario
		all := coverage{}
		for range cap(rigs) {
			maps.Copy(all, (<-rigs).coverage)
		}
		if missing := all.missing(); ran == len(paths) && len(missing) > 0 {
			t.Errorf("no scenario shows:\n%s", strings.Join(missing, "\n"))
		}
	})
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ran++
			t.Parallel()
			r := <-rigs
			defer func() { rigs <- r }()
			s, err := readScenario(path)
			lab.Must(t, err)
			r.scenario(t, s)
		})
	}
}

// scenario checks a whole scenario.
func (r *rig) scenario(t *testing.T, s *scenario) {
	folder := t.TempDir()
	tr := &traffic{lab: r.lab, pins: map[string]string{}}
	p, err := startPipeline(r.lab.Node, s.settings, folder)
	lab.Must(t, err)
	t.Cleanup(func() { lab.Check(t, errors.Join(p.close(), tr.close(), cleanUp(r.lab.Node)), "clean up") })
	for _, st := range s.steps {
		for _, fault := range st.faults {
			if p, err = p.fault(r.lab.Node, s.settings, fault); err != nil {
				t.Fatalf("step %d: %s: %v", st.number, fault, err)
			}
		}
		tr.settled = p.settleFlows
		r.step(t, s, st, p, tr)
	}
}

// step checks one step. Its number is in all messages.
func (r *rig) step(t *testing.T, s *scenario, st *step, p *pipeline, tr *traffic) {
	t.Helper()
	if err := st.enter(p.folder); err != nil {
		t.Fatalf("step %d: write manifests: %v", st.number, err)
	}
	plan := func(numbers *plan.Numbers) *fresh {
		state, err := planFolder(r.lab.Node, s.settings, p.folder, numbers, nil)
		if err != nil {
			t.Fatalf("step %d: plan: %v", st.number, err)
		}
		return state
	}
	if !testing.Short() {
		r.checkPlan(t, s, st, plan(nil))
	}
	if err := errors.Join(r.lab.Node.Do(forgetDatagrams), p.loadAfter(st.faults)); err != nil {
		t.Fatalf("step %d: %v", st.number, err)
	}
	if len(st.faults) > 0 {
		r.awaitRepair(t, st, p, plan)
	}
	lab.Same(t, strings.Split(st.problems, "\n"), strings.Split(p.reported(), "\n"), "step %d: reported problems", st.number)
	if !testing.Short() {
		r.checkTrace(t, st, tr)
	}
	state := plan(p.kernel.assigned())
	r.checkPackets(t, st, tr, state)
	if slices.Contains(st.faults, haste) {
		return
	}
	if err := p.retire(); err != nil {
		t.Fatalf("step %d: retire chains: %v", st.number, err)
	}
	r.checkKernel(t, st, r.lab.Node, state)
	last := st == s.steps[len(s.steps)-1]
	if last || !testing.Short() {
		r.checkListing(t, st, state, last)
	}
	if last && !testing.Short() {
		r.checkRender(t, st, state)
	}
}

// awaitRepair waits until the kernel equals the plan.
func (r *rig) awaitRepair(t *testing.T, st *step, p *pipeline, plan func(*plan.Numbers) *fresh) {
	t.Helper()
	a := &performance{player: &player{lab: r.lab}}
	if diff, err := p.repaired(func() (string, error) { return a.differs(plan(p.kernel.assigned()), false) }); err != nil || diff != "" {
		t.Errorf("step %d: after faults: %v (-planned +there):\n%s", st.number, err, diff)
	}
}

// checkCluster compares the plan of the common manifests with its file, and keeps it: the first steps of all scenarios state the difference.
func (r *rig) checkCluster(t *testing.T) {
	t.Helper()
	s, err := parseSettings(nil)
	lab.Must(t, err)
	state, err := planFolder(r.lab.Node, s, filepath.Dir(common), nil, nil)
	lab.Must(t, err)
	r.cluster = state.variable(s)
	got := strings.Join(r.cluster, "\n") + "\n"
	if *update {
		lab.Must(t, os.WriteFile(commonPlan, []byte(got), 0o644))
	}
	want, err := os.ReadFile(commonPlan)
	lab.Must(t, err)
	lab.Same(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"), "plan of %s (-want +got; -update accepts it)", common)
}

// change keeps the plan of a step, and returns its difference from the plan before the step: the growth of the maps and
// sets, or a list of the added elements with the growth by the removed ones.
func (r *rig) change(s *scenario, st *step, state *fresh) string {
	st.planned = state.variable(s.settings)
	before := r.cluster
	if st.number > 1 {
		before = s.steps[st.number-2].planned
	}
	if st.listed {
		removed := without("- ", before, st.planned)
		return merged(without("+ ", folded(st.planned), folded(before))) + growth(removed)
	}
	return growth(difference(before, st.planned))
}

// merged replaces two lines that differ only in the family by one line without a family.
func merged(diff string) (out string) {
	lines := strings.SplitAfter(diff, "\n")
	for _, line := range lines {
		both := slices.Contains(lines, strings.Replace(line, " ip ", " ip6 ", 1))
		switch {
		case strings.Contains(line, " ip ") && both:
			out += strings.Replace(line, " ip ", " ", 1)
		case !slices.Contains(lines, strings.Replace(line, " ip6 ", " ip ", 1)) || !strings.Contains(line, " ip6 "):
			out += line
		}
	}
	return out
}

// changed matches an element or a chain in a difference.
var changed = regexp.MustCompile(`(?m)^([+-]) (?:chain (ip6?) (\S+)$|(ip6?) (\S+) )`)

// growth returns by how many elements a difference changes each map and set, and its new and removed chains. An item
// without a family applies to both.
func growth(diff string) string {
	type item struct{ set, chain string }
	sizes := map[item]map[string]int{}
	for _, m := range changed.FindAllStringSubmatch(diff, -1) {
		it := item{m[5], m[3]}
		if sizes[it] == nil {
			sizes[it] = map[string]int{}
		}
		sizes[it][m[2]+m[4]] += map[string]int{"+": 1, "-": -1}[m[1]]
	}
	byName := func(a, b item) int { return cmp.Or(cmp.Compare(a.chain, b.chain), cmp.Compare(a.set, b.set)) }
	text := ""
	for _, it := range slices.SortedFunc(maps.Keys(sizes), byName) {
		for _, family := range []string{"", "ip", "ip6"} {
			n := sizes[it][cmp.Or(family, "ip")]
			switch both := sizes[it]["ip"] == sizes[it]["ip6"]; {
			case n == 0 || both != (family == ""):
			case it.set != "":
				text += fmt.Sprintf(", %s %+d", strings.TrimSpace(family+" "+it.set), n)
			default:
				text += fmt.Sprintf(", %s%c%s", strings.TrimLeft(family+" ", " "), fmt.Sprintf("%+d", n)[0], it.chain)
			}
		}
	}
	return strings.TrimPrefix(text, ", ")
}

func TestGrowth(t *testing.T) {
	const diff = `- ip services { a : b }
- ip services { b : b }
- ip6 services { a : b }
- ip slots { a : b }
- chain ip endpoints-of-2
+ ip services { a comment "x" : c }
+ ip6 services { a : c }
+ ip slots { a : c }
+ ip hairpin { a . a }
+ ip6 hairpin { a . a }
+ chain ip endpoints-of-1
+ chain ip6 endpoints-of-1
`
	lab.Same(t, "hairpin +1, ip services -1, +endpoints-of-1, ip -endpoints-of-2", growth(diff), "growth")
}

// TestListedElements: each map and set, except those with constant elements, occurs in a complete list, so that the text of its elements is
// compared.
func TestListedElements(t *testing.T) {
	text, err := os.ReadFile(commonPlan)
	lab.Must(t, err)
	lists := "\n" + string(text)
	unused, err := readPlans("testdata")
	lab.Must(t, err)
	paths, err := filepath.Glob("testdata/*.txtar")
	lab.Must(t, err)
	for _, path := range paths {
		s, err := readScenario(path)
		lab.Must(t, err)
		for _, st := range s.steps {
			if st.listed {
				lists += strings.ReplaceAll("\n"+st.want, "\n+ ", "\n")
			} else {
				delete(unused, s.key(st))
			}
		}
	}
	lab.Same(t, map[string]string{}, unused, "lines of %s without a step", plans)
	s, err := parseSettings([]string{"--refuse-unused-ports=all", "--answer-ping=ready"})
	lab.Must(t, err)
	for _, table := range plan.New(s.plan).Tables() {
		for _, set := range table.Sets {
			constant := !plan.Planned(set) || slices.Contains([]string{"lease", "dispatch-full", "crowded"}, set.Name)
			name := set.Family.Keyword() + " " + set.Name
			listed := strings.Contains(lists, "\n"+name+" { ") || strings.Contains(lists, "\n"+set.Name+" { ")
			if !constant && !listed {
				t.Errorf("no file with the name %q has elements of %s", elementsFile, name)
			}
		}
	}
}

// checkPlan compares the change of the plan with the scenario.
func (r *rig) checkPlan(t *testing.T, s *scenario, st *step, state *fresh) {
	t.Helper()
	got := r.change(s, st, state)
	if *update {
		lab.Must(t, s.update(st, got))
		return
	}
	separator := ", "
	if st.listed {
		separator = "\n"
	}
	want, have := strings.Split(strings.TrimSpace(st.want), separator), strings.Split(strings.TrimSpace(got), separator)
	lab.Same(t, want, have, "step %d: plan (-want +got; -update accepts it)", st.number)
}

// checkKernel compares a namespace's tables with the plan.
func (r *rig) checkKernel(t *testing.T, st *step, h *lab.Host, state *fresh) {
	t.Helper()
	gotElements, gotChains, err := inKernel(h, state.planner)
	if err != nil {
		t.Fatalf("step %d: read tables: %v", st.number, err)
	}
	lab.Same(t, elements(state.planner), gotElements, "step %d: elements in the kernel of %s (-planned +there)", st.number, h.Name)
	lab.Same(t, chains(state.planner), gotChains, "step %d: chains in the kernel of %s (-planned +there)", st.number, h.Name)
}

// checkListing: nft can list the tables. After the last step, all available versions of nft load their own listing, and list the same as for
// tables that were programmed at once.
func (r *rig) checkListing(t *testing.T, st *step, state *fresh, last bool) {
	t.Helper()
	if last {
		if err := state.program(r.freshly); err != nil {
			t.Fatalf("step %d: program a fresh namespace: %v", st.number, err)
		}
		defer func() {
			lab.Check(t, cleanUp(r.freshly), "step %d: clean up", st.number)
		}()
	}
	lab.Check(t, state.adopted(r.lab.Node), "step %d", st.number)
	if !last {
		lab.Check(t, lab.Err(nftOfMachine.list(r.lab.Node)), "step %d", st.number)
		return
	}
	r.checkKernel(t, st, r.freshly, state)
	for i, nft := range r.programs {
		text, err := nft.reload(r.lab.Node, r.loaded)
		if err != nil {
			t.Errorf("step %d: %v", st.number, err)
			continue
		}
		if i > 0 && testing.Short() {
			continue // the first one has found no difference
		}
		once, err := nft.list(r.freshly)
		lab.Check(t, err, "step %d", st.number)
		lab.Same(t, canonical(withoutKeys(once)), canonical(withoutKeys(text)), "step %d: %s list ruleset (-programmed at once +step by step)", st.number, nft.name)
	}
}

// checkPackets compares the results for packets with the scenario.
func (r *rig) checkPackets(t *testing.T, st *step, tr *traffic, state *fresh) {
	t.Helper()
	lines, err := parsePackets(st.packets)
	if err != nil {
		t.Fatalf("step %d: packets: %v", st.number, err)
	}
	for _, err := range tr.run(t.Context(), lines) {
		t.Errorf("step %d: %v", st.number, err)
	}
	for _, l := range lines {
		r.coverage.note(l, state, state.cidrs[inet.FamilyOf(l.to.Addr())])
	}
}

func flushConntrack() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }

// forgetDatagrams removes the conntrack entries of UDP and SCTP in the calling thread's namespace: a later probe with the same
// port would follow the old entry. Flows that keep sending keep their entries.
func forgetDatagrams() error {
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		for _, proto := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, notOfFlows{proto})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
