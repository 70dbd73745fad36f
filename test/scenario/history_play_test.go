package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
)

// player plays histories.
type player struct {
	lab *lab.Lab
	// listings, if not nil, has two more hosts. Every 20th step compares nft's listings there.
	listings *lab.Lab
	// sabotage, if not nil, breaks the proxy on purpose.
	sabotage func(*settings)
	// thorough sends each packet of the last step many times, to see all possible results.
	thorough bool
	// patience is the timeout for an expected answer.
	patience time.Duration
	// until is the time at which a history is aborted; zero means never.
	until time.Time
	// folder is the folder for written scenarios; empty means that of the environment.
	folder string

	plays, steps, faults, probes, continued, moved int
	// starting counts the starting endpoints of all steps, fills the service ports that clients have filled, and passed
	// the packets that the node passes on.
	starting, fills, passed int
	outcomes                map[oracle.Outcome]int
	// lastPlay is the record of the last play.
	lastPlay []recordedStep
	// drawn counts, for each list of weights from the greatest to the least, how often each endpoint was drawn. hashed counts the packets whose
	// endpoint a hash has selected, by the part of the packet.
	drawn  map[string]*draws
	hashed map[string]int
}

func newPlayer(l *lab.Lab) *player {
	return &player{lab: l, patience: patience, outcomes: map[oracle.Outcome]int{}, drawn: map[string]*draws{}, hashed: map[string]int{}}
}

// draws has the weights of endpoints, and how often a random number has drawn each of them.
type draws struct{ weights, times []int }

// failure is the point at which a history fails.
type failure struct {
	step int
	// packet is the number of the failed packet, or -1.
	packet int
	// kind classifies failures: a smaller history must fail in the same way.
	kind, text string
}

func (f *failure) String() string {
	const most = 30
	lines := strings.Split(f.text, "\n")
	if len(lines) > most {
		lines = append(lines[:most], "...")
	}
	return fmt.Sprintf("step %d: %s: %s", f.step+1, f.kind, strings.Join(lines, "\n"))
}

// performance is one play of a history.
type performance struct {
	*player
	settings settings
	folder   string
	pipeline *pipeline
	traffic  *traffic
	files    map[string][]runtime.Object
	memory   oracle.Memory
	starts   oracle.Starts
	// filled are the times at which service ports were filled.
	filled map[string]time.Time
	names  pinNames
	// flows are UDP clients that keep sending; begun is the number of clients so far.
	flows    map[string]*goingOn
	begun    int
	recorded []recordedStep
	// last is true during the last step.
	last bool
	// counting guards the player's numbers.
	counting sync.Mutex
}

// play plays a history, and returns its failure, or nil.
func (p *player) play(h *history) (f *failure) {
	p.plays++
	folder, err := os.MkdirTemp("", "history")
	if err != nil {
		return &failure{0, -1, "error", err.Error()}
	}
	defer os.RemoveAll(folder) //nolint:errcheck // a temporary directory
	a := &performance{player: p, folder: folder, files: map[string][]runtime.Object{},
		traffic: &traffic{lab: p.lab, pins: map[string]string{}}}
	if a.settings, err = parseSettings(h.flags); err != nil {
		return &failure{0, -1, "error", err.Error()}
	}
	a.settings.stopped, a.filled = time.Now(), map[string]time.Time{}
	if p.sabotage != nil {
		p.sabotage(&a.settings)
	}
	if err := a.begin(); err != nil {
		return &failure{0, -1, "error", err.Error()}
	}
	defer func() {
		p.lastPlay = a.recorded
		a.endFlows()
		err := errors.Join(a.pipeline.close(), cleanUp(p.lab.Node), p.lab.Node.Do(forgetForeignTables))
		if err != nil && f == nil {
			f = &failure{len(h.steps) - 1, -1, "error", "clean up: " + err.Error()}
		}
	}()
	for i, m := range h.steps {
		if !p.until.IsZero() && time.Now().After(p.until) {
			break
		}
		a.last = i == len(h.steps)-1
		if f := a.step(i, m); f != nil {
			f.step = i
			return f
		}
		p.steps++
	}
	return nil
}

// begin starts the proxy with the initial cluster of scenarios.
func (a *performance) begin() (err error) {
	text, err := os.ReadFile(common)
	if err != nil {
		return err
	}
	objects, err := readObjects(string(text))
	if err != nil {
		return err
	}
	a.files["cluster.yaml"] = objects
	if err := os.WriteFile(filepath.Join(a.folder, "cluster.yaml"), text, 0o600); err != nil {
		return err
	}
	if a.pipeline, err = startPipeline(a.lab.Node, a.settings, a.folder); err != nil {
		return err
	}
	a.starts.Follow(a.oracle(), a.pipeline.clock.now())
	return a.pipeline.load()
}

// step carries out a step, and makes all possible checks.
func (a *performance) step(i int, m *moment) *failure {
	fail := func(kind string, err error) *failure { return &failure{packet: -1, kind: kind, text: err.Error()} }
	if m.write["cluster.yaml"] != nil || slices.Contains(m.faults, restart) {
		a.endFlows() // after a downtime, or a change of the node's addresses, the outcome of flows is undefined
	}
	for _, fault := range m.faults {
		if err := a.fault(fault); err != nil {
			return fail("error", fmt.Errorf("%s: %w", fault, err))
		}
	}
	now := a.pipeline.clock.now()
	if err := errors.Join(a.enter(m), a.pipeline.loadAfter(m.faults)); err != nil {
		return fail("error", err)
	}
	a.starts.Follow(a.oracle(), now)
	if diff, err := a.await(m); err != nil || diff != "" {
		return fail("kernel", differing(err, diff))
	}
	// The search for stale flows is requested after the awaited sync; the next sync is after that.
	if err := a.pipeline.settle(); err != nil {
		return fail("error", err)
	}
	if i%forgetEvery == 0 {
		if err := a.lab.Node.Do(forgetProbes); err != nil {
			return fail("error", err)
		}
	}
	a.memory.Follow(a.oracle())
	slow := a.starts.Weigh(a.oracle(), a.pipeline.clock.now())
	a.starting += len(slow)
	if got, err := a.pipeline.shares(); err != nil || !slices.Equal(slow, got) {
		return fail("slow start", fmt.Errorf("the shares are %q, want %q; %v", got, slow, err))
	}
	a.recorded = append(a.recorded, recordedStep{})
	if f := a.packets(i, m); f != nil {
		a.note()
		return f
	}
	if !m.hasty {
		if err := a.pipeline.retire(); err != nil {
			return fail("error", fmt.Errorf("retire chains: %w", err))
		}
		// The steps of slow start need other chains, also in the time that has just passed.
		diff, err := a.differsFromPlan(len(slow) == 0)
		if err != nil || diff != "" {
			a.note()
			return fail("kernel after retiring", differing(err, diff))
		}
	}
	a.note()
	if len(slow) > 0 {
		return nil
	}
	return a.compareListings(i, m)
}

// forgetEvery is the number of steps after which the conntrack entries of probes are deleted: long before a host has used all its
// ports.
const forgetEvery = 100

func differing(err error, diff string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("-planned from scratch +in the kernel:\n%s", diff)
}

// enter writes the step's files.
func (a *performance) enter(m *moment) error {
	for _, name := range m.remove {
		delete(a.files, name)
		if err := os.Remove(filepath.Join(a.folder, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for name, objects := range m.write {
		text := objects.yaml()
		read, err := readObjects(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		a.files[name] = read
		if err := os.WriteFile(filepath.Join(a.folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (m manifest) yaml() string {
	var texts []string
	for _, object := range m {
		text, err := yaml.Marshal(object)
		if err != nil {
			panic(err)
		}
		texts = append(texts, string(text))
	}
	return strings.Join(texts, "---\n")
}

// readObjects parses a manifest for the oracle.
func readObjects(text string) (list []runtime.Object, err error) {
	for _, one := range strings.Split(text, "---\n") {
		if strings.TrimSpace(one) == "" {
			continue
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(one), nil, nil)
		if err != nil {
			return nil, err
		}
		list = append(list, object)
	}
	return list, nil
}

// fault injects a fault.
func (a *performance) fault(fault string) (err error) {
	a.faults++
	a.pipeline, err = a.pipeline.fault(a.lab.Node, a.settings, fault)
	if fault == restart {
		a.memory.Restart(a.oracle())
		a.starts.Restart()
	}
	for _, what := range []string{"flush ruleset", "delete table", " affinity"} {
		if strings.Contains(fault, what) { // the affinity map is lost
			a.memory.Forget()
			a.names.forget()
		}
	}
	return err
}

// await returns the kernel's difference from the plan. After a fault, a repair may take a while. A batch has a limited
// number of elements, so that many Services need several batches.
func (a *performance) await(m *moment) (diff string, err error) {
	if len(m.faults) > 0 {
		return a.pipeline.repaired(func() (string, error) { return a.differsFromPlan(false) })
	}
	const many = 8
	for deadline := time.Now().Add(lab.Patience); ; {
		diff, err = a.differsFromPlan(false)
		if err == nil && diff == "" || len(m.write) < many || time.Now().After(deadline) {
			return diff, err
		}
		if err := a.pipeline.settle(); err != nil {
			return "", err
		}
	}
}

// plan plans the folder from scratch, with the numbers that the proxy has assigned.
func (a *performance) plan() (*fresh, error) {
	starts, err := a.pipeline.loop.Starts(context.Background())
	if err != nil {
		return nil, err
	}
	return planFolder(a.lab.Node, a.settings, a.folder, a.pipeline.kernel.assigned(), starts)
}

func (a *performance) differsFromPlan(retired bool) (string, error) {
	state, err := a.plan()
	if err != nil {
		return "", err
	}
	return a.differs(state, retired)
}

// ofClasses matches objects of which unused ones may exist before unused chains are deleted: elements that lead to chains of classes,
// and these chains.
var ofClasses = regexp.MustCompile(`^(ip6? dispatch|chain ip6? ([a-z0-9-]+-[0-9]+|firewall-.*|range-.*|timed-.*|timeouts-.*)$)`)

// differs compares the kernel with a plan from scratch: elements, chains and rules. Before unused chains are deleted, there may
// be more of them.
func (a *performance) differs(state *fresh, retired bool) (string, error) {
	there, chainsThere, err := inKernel(a.lab.Node, state.planner)
	if err != nil {
		return "", err
	}
	there = append(there, chainsThere...)
	planned := append(elements(state.planner), chains(state.planner)...)
	if !retired {
		there = slices.DeleteFunc(there, func(line string) bool {
			return ofClasses.MatchString(line) && !slices.Contains(planned, line)
		})
	}
	if diff := difference(planned, there); diff != "" {
		return diff, nil
	}
	return a.rulesDiffer(state)
}

// difference lists the lines that only one of the lists has.
func difference(wanted, there []string) (diff string) {
	diff = without("- ", wanted, there)
	return diff + without("+ ", there, wanted)
}

func without(prefix string, lines, others []string) string {
	known := map[string]bool{}
	for _, line := range others {
		known[line] = true
	}
	var diff strings.Builder
	for _, line := range lines {
		if !known[line] {
			diff.WriteString(prefix + line + "\n")
		}
	}
	return diff.String()
}

func (a *performance) rulesDiffer(state *fresh) (diff string, err error) {
	err = a.lab.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		for _, t := range state.planner.Tables() {
			have, err := conn.ReadTable(t.Family, t.Name)
			if err != nil {
				return err
			}
			chains, err := have.OtherRules(t)
			if err != nil {
				return err
			}
			for _, chain := range chains {
				diff += fmt.Sprintf("the rules of chain %s %s\n", t.Family.Keyword(), chain)
			}
		}
		return nil
	})
	return diff, err
}

// compareListings compares nft's listing with that of a namespace in which everything is programmed at once.
func (a *performance) compareListings(i int, m *moment) *failure {
	if a.listings == nil || i%20 != 19 || m.hasty {
		return nil
	}
	fail := func(text string) *failure { return &failure{packet: -1, kind: "listing", text: text} }
	state, err := a.plan()
	if err != nil {
		return fail(err.Error())
	}
	err = a.lab.Node.Do(forgetForeignTables)
	if err = errors.Join(err, state.program(a.listings.Node)); err != nil {
		return fail(err.Error())
	}
	once, err1 := nftOfMachine.list(a.listings.Node)
	grown, err2 := nftOfMachine.reload(a.lab.Node, a.listings.Client)
	if err := errors.Join(err1, err2, cleanUp(a.listings.Node)); err != nil {
		return fail(err.Error())
	}
	if diff := cmp.Diff(byTable(withoutKeys(once)), byTable(withoutKeys(grown))); diff != "" {
		return fail("nft list ruleset (-programmed at once +step by step):\n" + diff)
	}
	if err := state.adopted(a.lab.Node); err != nil {
		return fail(err.Error())
	}
	return nil
}

// byTable returns a listing by table: the order of tables depends on rewrites.
func byTable(listing string) map[string][]string {
	tables := map[string][]string{}
	for _, text := range strings.Split("\n"+sizes.ReplaceAllString(listing, ""), "\ntable ")[1:] {
		family, _, _ := strings.Cut(text, " ")
		tables[family] = append(tables[family], canonical("table "+strings.TrimSpace(text)+"\n")...)
	}
	return tables
}

// sizes matches the sizes of sets, which depend on the largest past number of elements.
var sizes = regexp.MustCompile(`\n\t\tsize [0-9]+`)

// forgetForeignTables deletes the tables that faults have added.
func forgetForeignTables() error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	for _, f := range inet.Families {
		_, deleted := conn.DeleteTable(f, "foreign")
		err = errors.Join(err, deleted)
	}
	return errors.Join(err, conn.Close())
}

// ownAddresses are the node's addresses.
var ownAddresses = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2"),
}

// oracle returns an oracle for the present state.
func (a *performance) oracle() *oracle.Oracle {
	var all oracle.Objects
	for _, list := range a.files {
		for _, o := range list {
			all.Add(o)
		}
	}
	return oracle.New(all, a.settings.machine(a.out))
}

// machine returns the node with these settings for the oracle.
func (s *settings) machine(out func(netip.Addr) string) oracle.Machine {
	m := oracle.Machine{
		Name: nodeName, Addresses: ownAddresses, MasqueradeAll: s.plan.MasqueradeAll,
		IgnoreExternalIPs: s.model.IgnoreExternalIPs, NodePortAddresses: s.nodePorts,
		RefuseUnusedPorts: s.unusedPorts, AnswerPing: string(s.model.Ping), Out: out,
		DirectServerReturn: s.plan.DirectReturn, DirectByDefault: s.model.DirectDefault,
		NodeNetworks: slices.Concat(s.plan.NodeNetworks[:]...),
	}
	pods := s.plan.LocalPods
	switch {
	case pods[0].Interface != "":
		m.LocalPod = func(p oracle.Packet) bool { return strings.HasPrefix(p.Device, pods[0].Interface) }
	case pods[0].Prefix.IsValid():
		m.Pods = [2]netip.Prefix{pods[0].Prefix, pods[1].Prefix}
		m.LocalPod = func(p oracle.Packet) bool { return pods[0].Prefix.Contains(p.From) || pods[1].Prefix.Contains(p.From) }
	}
	return m
}

// out returns the node's device for packets to an address. The default route leads to the client.
func (a *performance) out(to netip.Addr) string {
	for _, h := range a.lab.Hosts() {
		if h.Addr(to) == to {
			return h.Device
		}
	}
	return a.lab.Client.Device
}

// packets sends a step's packets: concurrently, except those of clients with session affinity.
func (a *performance) packets(i int, m *moment) *failure {
	truth := a.oracle()
	a.starts.Weigh(truth, a.pipeline.clock.now())
	var mu sync.Mutex
	var failed *failure
	var wg sync.WaitGroup
	note := func(n int, f *failure) {
		mu.Lock()
		defer mu.Unlock()
		if f != nil && (failed == nil || n < failed.packet) {
			f.packet, failed = n, f
		}
	}
	crowds := map[string]int{}
	const atOnce = 128
	slots := make(chan struct{}, atOnce)
	for n, q := range m.packets {
		p, h := a.packet(q)
		if q.flow != "" {
			continue
		}
		v := truth.Ask(p)
		if v.Affinity == 0 {
			v = v.ForNewClient()
		}
		l, ok := a.lineOf(q, p, v)
		if !ok {
			continue
		}
		if few(v) {
			crowds[v.Port] = n
			continue
		}
		if v.Affinity > 0 && v.Outcome == oracle.Answered {
			note(n, a.remembered(h, q, p, v, l))
			continue
		}
		a.keep(l)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			note(n, a.send(h, l, v, p, truth))
		})
	}
	wg.Wait()
	for port, n := range crowds {
		if failed == nil {
			note(n, a.crowd(m.packets[n], truth, port))
		}
	}
	if failed != nil {
		return failed
	}
	return a.goOn(m, truth)
}

// few reports whether the endpoints of a verdict have so small a maximum that the packets of a step could reach it.
func few(v oracle.Verdict) bool {
	return v.Outcome == oracle.Answered && v.Maximum > 0 && v.Maximum < 10
}

// crowd fills all endpoints of a service port with clients. It skips a service port that was full a short time ago, and clients that are bound to one
// endpoint. If an answer is late, it tries again.
func (a *performance) crowd(q question, truth *oracle.Oracle, port string) *failure {
	p, h := a.packet(q)
	v := truth.Ask(p)
	l, ok := a.lineOf(q, p, v)
	if !ok || l.outcome != lab.Answered || l.protocol != inet.UDP || v.Hashed && v.Chosen >= 0 || time.Since(a.filled[port]) < fillPause+time.Second {
		return nil
	}
	l.fills, l.over = v.Maximum, map[oracle.Outcome]lab.Outcome{oracle.Refused: lab.Refused, oracle.Dropped: lab.TimedOut}[v.AtMaximum]
	l.text += fmt.Sprintf(" fills=%d/%s", l.fills, map[oracle.Outcome]string{oracle.Refused: "refused", oracle.Dropped: "timeout"}[v.AtMaximum])
	a.keep(l)
	a.fills++
	var err error
	for range 2 {
		if err = a.traffic.fill(context.Background(), h, l); err == nil {
			a.filled[port] = time.Now()
			return nil
		}
	}
	return &failure{kind: "packet: connection limit", text: fmt.Sprintf("%s: %v", l.text, err)}
}

// packet returns a question's packet for the oracle, and its source host.
func (a *performance) packet(q question) (oracle.Packet, *lab.Host) {
	h, err := a.traffic.host(q.from)
	if err != nil {
		panic(err)
	}
	from := q.source
	if !from.IsValid() {
		from = h.Addr(q.to.Addr())
	}
	device := h.Device
	if strings.HasPrefix(q.from, "pod-") && a.settings.plan.LocalPods[0].Interface == bridge {
		device = bridge
	}
	return oracle.Packet{From: from, Device: device, To: q.to, Protocol: q.protocol}, h
}

// lineOf returns the line of a scenario for a packet. It returns false if a line cannot express the result, or if the result is not
// visible.
func (a *performance) lineOf(q question, p oracle.Packet, v oracle.Verdict) (line, bool) {
	text := q.from
	if q.source.IsValid() {
		text += "@" + q.source.String()
	}
	if q.protocol == "" {
		text += " " + q.to.Addr().String() + "/icmp"
	} else {
		text += " " + q.to.String() + "/" + strings.ToLower(string(q.protocol))
	}
	if q.flow != "" {
		text += " flow=" + q.flow
	}
	outcome, ok := a.outcome(q, p, v)
	if !ok {
		return line{}, false
	}
	l, err := parseLine(text + " " + outcome)
	if err != nil {
		panic(err)
	}
	return l, true
}

// outcome returns the outcome part of a line.
func (a *performance) outcome(q question, p oracle.Packet, v oracle.Verdict) (string, bool) {
	switch v.Outcome {
	case oracle.Refused:
		return "refused", true
	case oracle.Dropped:
		return "timeout", true
	case oracle.Echoed:
		return "answers", true
	case oracle.NotService:
		return a.untouched(q)
	}
	lost, passed := 0, false
	text := "="
	for _, e := range v.Endpoints {
		name, seen := a.hostOf(e.Addr()), "node"
		switch {
		case e.Passed: // in this lab, the other nodes do not translate
			lost, passed = lost+1, true
		case name == "node" && q.protocol == corev1.ProtocolSCTP:
			return "", false // no SCTP server
		case !e.Sees.IsValid():
			lost++
			seen = unseen
		case e.Sees == p.From:
			seen = "kept"
		}
		text += fmt.Sprintf(" %s:%d/%s", name, e.Port(), seen)
	}
	switch {
	case lost == len(v.Endpoints):
		return "timeout", true
	case v.Ranged && !served(q.to.Port()):
		return "refused", lost == 0 && q.protocol != corev1.ProtocolSCTP // the endpoint refuses
	}
	return text, lost == 0 || v.Affinity == 0 && !passed
}

// untouched returns the result for a packet that the proxy does not handle: a host without a server rejects it, and the other
// addresses are unused.
func (a *performance) untouched(q question) (string, bool) {
	own := slices.Contains(ownAddresses, q.to.Addr())
	switch {
	case own && (q.protocol == "" || q.protocol == corev1.ProtocolSCTP):
		return "", false // ICMP is answered, and a host's own SCTP socket prevents a rejection while it connects to itself
	case own && served(q.to.Port()):
		return fmt.Sprintf("= node:%d/kept", q.to.Port()), true
	case own:
		return "refused", true
	}
	return "timeout", true
}

// served reports whether the hosts other than clients have servers at a port.
func served(port uint16) bool { return port == firstPort || port == secondPort }

func (a *performance) hostOf(addr netip.Addr) string {
	for _, h := range a.lab.Hosts() {
		if h.Addr(addr) == addr {
			return h.Name
		}
	}
	return addr.String()
}

// Timeouts. If no answer is expected, the test waits shortSilence or longSilence, and may miss a late answer. For an expected answer,
// the timeout is patience, or noAnswer while a history shrinks, or if one of the servers may not answer.
const (
	shortSilence = 20 * time.Millisecond
	longSilence  = 100 * time.Millisecond
	noAnswer     = 400 * time.Millisecond
)

// send sends one packet. In the last step of a thorough play, it sends enough packets to reach all servers almost certainly.
func (a *performance) send(h *lab.Host, l line, v oracle.Verdict, p oracle.Packet, truth *oracle.Oracle) *failure {
	n := len(l.servers)
	tries, most := 1, 1
	wait := a.patience
	switch {
	case l.outcome == lab.TimedOut:
		wait = shortSilence
	case l.loses():
		wait = noAnswer
	}
	if a.thorough && a.last {
		tries, most = 2*n+2, 25*max(n, 1)
		if l.outcome == lab.TimedOut {
			tries, wait = 2, longSilence
		}
	}
	seen := map[server]bool{}
	for i := 0; i < most && (i < tries || len(seen) < n); i++ {
		s, port, f := a.try(h, l, wait)
		if f != nil {
			return f
		}
		if l.outcome == lab.Answered {
			seen[s] = true
			if p.Port = port; v.Hashed && v.Affinity == 0 && s.seen != unseen {
				if w := truth.Ask(p); v.Endpoints[slices.Index(l.servers, s)] != w.Endpoints[w.Chosen] {
					return &failure{kind: "packet: another endpoint than that of the hash", text: fmt.Sprintf("%s: from port %d, %v instead of %v",
						l.text, port, s, w.Endpoints[w.Chosen])}
				}
			}
		}
		a.count(l, v, s)
	}
	if a.thorough && a.last && len(seen) < n {
		return &failure{kind: "packet: not all endpoints", text: fmt.Sprintf("%s: only %v answered", l.text, seen)}
	}
	return nil
}

func (a *performance) count(l line, v oracle.Verdict, s server) {
	a.counting.Lock()
	defer a.counting.Unlock()
	a.probes++
	a.outcomes[v.Outcome]++
	if slices.ContainsFunc(v.Endpoints, func(e oracle.Endpoint) bool { return e.Passed }) {
		a.passed++
	}
	if v.Hashed && v.Affinity == 0 {
		a.hashed[map[bool]string{false: "address and port", true: "address"}[v.Chosen >= 0]]++
		return
	}
	n := len(l.servers)
	if n < 2 || v.Affinity > 0 {
		return
	}
	var weights []int
	place, at := 0, slices.Index(l.servers, s)
	for i, e := range v.Endpoints {
		weights = append(weights, e.Weight)
		if w := v.Endpoints[at].Weight; e.Weight > w || e.Weight == w && i < at {
			place++
		}
	}
	slices.Sort(weights)
	slices.Reverse(weights)
	key := fmt.Sprint(weights)
	if a.drawn[key] == nil {
		a.drawn[key] = &draws{weights, make([]int, n)}
	}
	a.drawn[key].times[place]++
}

// try sends one packet. It returns the server of an answer, and the port from which the client has sent.
func (a *performance) try(h *lab.Host, l line, wait time.Duration) (s server, port uint16, f *failure) {
	answer := probe(context.Background(), h, l, wait)
	kind := fmt.Sprintf("packet: %s instead of %s", answer.Outcome, l.outcome)
	if answer.Outcome != l.outcome && !(answer.Outcome == lab.TimedOut && l.loses()) {
		return s, 0, &failure{kind: kind, text: fmt.Sprintf("%s: got %q (%v)", l.text, answer, answer.Err)}
	}
	if l.outcome != lab.Answered {
		return s, 0, nil
	}
	if l.protocol == 0 {
		return s, 0, nil // the address answers
	}
	s, err := a.traffic.answer(h, l, answer)
	if err != nil {
		return s, 0, &failure{kind: "packet: another answer", text: fmt.Sprintf("%s: %v", l.text, err)}
	}
	return s, answer.Port, nil
}

// remembered sends packets of a client with session affinity.
func (a *performance) remembered(h *lab.Host, q question, p oracle.Packet, v oracle.Verdict, l line) *failure {
	a.keep(a.names.pinned(l, v, p.From))
	if l.outcome != lab.Answered {
		a.memory.Lose(v, p.From) // no reply shows the selected endpoint
		return a.send(h, l, v, p, nil)
	}
	tries := 2
	if a.thorough && a.last {
		tries = 3
	}
	for range tries {
		narrow := a.memory.Narrow(v, p.From, time.Now())
		l, ok := a.lineOf(q, p, narrow)
		if !ok {
			return nil
		}
		s, _, f := a.try(h, l, a.patience)
		if f != nil {
			if len(narrow.Endpoints) < len(v.Endpoints) {
				f.kind = "affinity: " + f.kind
			}
			return f
		}
		a.count(l, v, s)
		a.memory.Note(v, p.From, narrow.Endpoints[slices.Index(l.servers, s)].AddrPort, time.Now())
	}
	return nil
}
