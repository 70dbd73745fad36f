package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// This measurement compares the first packets of connections on nodes with different rules: from none to those of a
// proxy. All bursts of a round follow each other on a processor that runs nothing else, and a figure is the median of
// the differences within a round. The cost of a lookup depends on the location of the elements in the kernel's memory.
// So in each turn, all nodes load their rules again, and a figure is the median of all turns.

// The rules of the nodes. Each row has a little more than the row before it. The rows of one and of two lookups are the
// least that any program needs whose rules find a Service in a map.
const (
	noRules       = "no rules"
	tracking      = "connection tracking"
	emptyNAT      = "empty NAT chains"
	staticRule    = "one static rule with `dnat`"
	oneLookup     = "one lookup (VIP → endpoint)"
	twoLookups    = "two lookups (VIP → number → endpoint)"
	withoutCounts = "kube-nftproxy `--count-connections=false`"
)

var rulesetNames = []string{noRules, tracking, emptyNAT, staticRule, oneLookup, twoLookups,
	withoutCounts, kubeNftproxy, kubeProxyNftables}

// The quantities of a node. The time of a packet is that of the whole packet. The others are differences: of first
// packets to the node with empty NAT chains, and of later packets to the node without rules.
const (
	wholePacket quantity = "first packet to an address of no Service"
	toNone      quantity = "no Service"
	toRandom    quantity = "random VIP"
	toOne       quantity = "one VIP"
	unanswered  quantity = "later packet of a UDP flow without a reply"
)

// rulesetsFile is the file of a checkout with the raw figures.
const rulesetsFile = "docs/benchmarks-packets.json"

// packetSize is a size with the protocol of all Services. With nodePorts, the packets are for their node ports.
type packetSize struct {
	size
	udp, nodePorts bool
}

// packetSizes are measured, unless -only selects others.
var packetSizes = []string{
	"1000x10", "10000x1", "10000x10", "10000x10 IPv6", "10000x10 UDP", "10000x10 IPv6 UDP",
	"10000xmixed", "50000xmixed", "2000x10" + ofNodePorts,
}

// ofNodePorts ends the text of a size with node ports.
const ofNodePorts = " node ports"

func (z packetSize) String() string {
	text := z.size.String()
	if z.udp {
		text += " UDP"
	}
	if z.nodePorts {
		text += ofNodePorts
	}
	return text
}

// parsePacketSize is the inverse of String.
func parsePacketSize(text string) (z packetSize, err error) {
	var counts string
	counts, z.nodePorts = strings.CutSuffix(text, ofNodePorts)
	counts, z.udp = strings.CutSuffix(counts, " UDP")
	if rest, is := strings.CutSuffix(counts, " IPv6"); is {
		counts, z.family = rest, inet.IPv6
	}
	if _, err := fmt.Sscanf(strings.Replace(counts, "mixed", "0", 1), "%dx%d", &z.services, &z.endpoints); err != nil {
		return z, fmt.Errorf("size %q: %w", text, err)
	}
	return z, nil
}

// rulesets are the nodes of a size.
type rulesets struct {
	*timer
	settings
	names []string
	// kubeconfig is for the program that reads no manifests. proxyLab is its node, where the API server runs.
	kubeconfig, dir string
	proxyLab        *lab.Lab
	running         []interface{ Kill() }
}

// measureRulesets measures all sizes, and writes the tables.
func measureRulesets(ctx context.Context, s settings) error {
	r := reportOf(s.output, rulesetsFile)
	sizes := packetSizes
	if s.only != "" {
		sizes = strings.Split(s.only, ",")
	}
	for _, text := range sizes {
		z, err := parsePacketSize(text)
		if err != nil {
			return err
		}
		if err := measureRulesetsOf(ctx, s, z, r); err != nil {
			return fmt.Errorf("%s: %w", z, err)
		}
		if err := r.publishPackets(s.output); err != nil {
			return err
		}
	}
	return nil
}

// publishPackets prints the tables and, if a checkout is given, writes them there.
func (r *Report) publishPackets(root string) error {
	fmt.Print(r.packets())
	if root == "" {
		return nil
	}
	if err := r.save(filepath.Join(root, rulesetsFile)); err != nil {
		return err
	}
	for _, p := range r.packetParts() {
		if err := page.Write(filepath.Join(root, p.page), p.name, p.text); err != nil {
			return err
		}
	}
	return nil
}

// measureRulesetsOf measures all nodes of a size.
func measureRulesetsOf(ctx context.Context, s settings, z packetSize, r *Report) error {
	fill := func(w *world) error {
		w.udp, w.nodePorts = z.udp, z.nodePorts
		return w.fill(ctx)
	}
	return inWorld(ctx, z.size, packetLab, fill, func(w *world, kubeconfig, dir string) error {
		rs := &rulesets{timer: &timer{world: w}, settings: s, kubeconfig: kubeconfig, dir: dir, proxyLab: w.lab}
		for _, name := range rulesetNames {
			if name == noRules || name == emptyNAT || wanted(s.programs, name) {
				rs.names = append(rs.names, name)
			}
		}
		if s.also != "" {
			rs.names = append(rs.names, strings.Split(s.also, ",")...)
		}
		for _, name := range rs.names {
			r.of(name, z)
		}
		defer rs.close()
		if err := rs.open(ctx); err != nil {
			return err
		}
		for turn := range s.turns {
			log.Printf("%s, turn %d of %d", z, 1+turn, s.turns)
			if err := rs.turn(ctx, z, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// of is the quantity of a node in the bursts of a turn.
func (q quantity) of(name string) quantity { return q + ": " + quantity(name) }

// open makes the nodes, and writes the manifests.
func (r *rulesets) open(ctx context.Context) error {
	for i, name := range r.names {
		var at *lab.Lab
		if name == kubeProxyNftables {
			at = r.proxyLab
		}
		if _, err := r.addSite(ctx, at); err != nil {
			return err
		}
		translates := !slices.Contains(rulesetNames[:3], name)
		if !translates || r.program(name) != "" {
			r.streams = append(r.streams, stream{toNone.of(name), place(i), (*timer).toEndpoint})
		}
		later := (*timer).laterToEndpoint
		if translates {
			later = (*timer).laterToService
			r.streams = append(r.streams, stream{toRandom.of(name), place(i), (*timer).toService},
				stream{toOne.of(name), place(i), (*timer).toOneService})
		}
		if r.udp {
			r.streams = append(r.streams, stream{unanswered.of(name), place(i), later})
		}
	}
	return writeList(filepath.Join(manifestsOf(r.dir, 0), "list.json"), vipNodes[0].objects(r.world))
}

// program returns the path of a node's program; empty if the node has rules for nft.
func (r *rulesets) program(name string) string {
	switch {
	case name == kubeProxyNftables:
		return r.theirs
	case name == kubeNftproxy, name == withoutCounts:
		return r.ours
	case slices.Contains(rulesetNames, name), strings.HasSuffix(name, ".nft"):
		return ""
	}
	return name
}

// toOneService returns the first packet of a connection to the same Service each time.
func (t *timer) toOneService(s *site) []byte { return t.first(s, t.frontend(7)) }

// laterToEndpoint and laterToService return a packet of a UDP flow to which the endpoint never replies. In a burst, the
// first one begins the flow, and all others continue it.
func (t *timer) laterToEndpoint(s *site) []byte {
	return t.later(s, netip.AddrPortFrom(t.endpoint(0), endpointPort))
}
func (t *timer) laterToService(s *site) []byte { return t.later(s, t.frontend(7)) }

func (t *timer) later(s *site, to netip.AddrPort) []byte {
	if s.flow == nil {
		s.flow = t.first(s, to)
	}
	return s.flow
}

// turn loads the rules of all nodes, sends packets, and records the figures.
func (r *rulesets) turn(ctx context.Context, z packetSize, report *Report) error {
	defer r.stop()
	for _, i := range rand.Perm(len(r.names)) {
		if err := r.load(ctx, r.names[i], r.sites[i].lab.Node); err != nil {
			return fmt.Errorf("%s: %w", r.names[i], err)
		}
	}
	bursts, rounds := &Figures{Values: map[quantity][]float64{}}, 200
	if r.quick {
		rounds = 100
	}
	if err := undisturbed(func() error { return r.time(ctx, rounds, bursts) }); err != nil {
		return err
	}
	for i, at := range r.sites {
		if err := at.allArrived(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.names[i], err)
		}
	}
	for _, name := range r.names {
		f := report.find(name, z.String())
		v, _ := bursts.median(toNone.of(name))
		f.add(wholePacket, v)
		for _, q := range []quantity{toNone, toRandom, toOne, unanswered} {
			less := toNone.of(emptyNAT)
			if q == unanswered {
				less = unanswered.of(noRules)
			}
			if v, ok := (extra{more: q.of(name), less: less}).median(bursts); ok {
				f.add(q, v)
			}
		}
	}
	return nil
}

// load replaces the rules of a node.
func (r *rulesets) load(ctx context.Context, name string, node *lab.Host) error {
	if err := load(ctx, node, "flush ruleset"); err != nil {
		return err
	}
	var p *program.Program
	var err error
	switch path := r.program(name); {
	case path == "" && strings.HasSuffix(name, ".nft"):
		return node.Command(ctx, "nft", "-f", name).Run()
	case path == "":
		return load(ctx, node, r.rules(name))
	case name == kubeProxyNftables:
		p := newProxy(name, r.settings, r.family, r.kubeconfig, node, filepath.Join(r.dir, "kube-proxy.log"))
		if _, err := p.start(ctx); err != nil {
			return err
		}
		r.running = append(r.running, p.running)
		return nil
	case name == withoutCounts:
		p, err = r.start(ctx, node, path, manifestsOf(r.dir, 0), "--count-connections=false")
	default:
		p, err = r.start(ctx, node, path, manifestsOf(r.dir, 0))
	}
	if p != nil {
		r.running = append(r.running, p)
	}
	return err
}

func (r *rulesets) stop() {
	for _, p := range r.running {
		p.Kill()
	}
	r.running = nil
}

// baseChains are those of the program. The first has rules, and sets precede the chains.
const baseChains = `table %s measured {
%s
 chain prerouting { type nat hook prerouting priority -101; %s; }
 chain output { type nat hook output priority -101; }
 chain prerouting-expired { type nat hook prerouting priority -99; }
 chain output-expired { type nat hook output priority -99; }
 chain prerouting-unclaimed { type nat hook prerouting priority 1000; }
 chain output-unclaimed { type nat hook output priority 1000; }
 chain input { type nat hook input priority -199; }
 chain postrouting { type nat hook postrouting priority -199; %s; }
 chain tracked { ct state new; }
}
`

// rules returns the rules of a node for nft.
func (r *rulesets) rules(name string) string {
	ip, proto, slots := r.family.Keyword(), "tcp", cmp.Or(r.world.endpoints, 4)
	if r.udp {
		proto = "udp"
	}
	masquerade := ""
	if r.nodePorts {
		masquerade = "ct status dnat masquerade fully-random"
	}
	rules := func(sets, prerouting string) string { return fmt.Sprintf(baseChains, ip, sets, prerouting, masquerade) }
	vip, to := fmt.Sprintf("%s daddr . meta l4proto . th dport", ip), fmt.Sprintf("%s daddr . th dport", ip)
	endpoint := func(service, slot int) string {
		return fmt.Sprintf("%s . %d", r.endpoint(r.firstOf(service)+slot%r.endpointsOf(service)), endpointPort)
	}
	var first, second []string
	for i := range r.services {
		to := r.frontend(i)
		key := fmt.Sprintf("%s . %s . %d : ", to.Addr(), proto, to.Port())
		if name == oneLookup {
			first = append(first, key+endpoint(i, 0))
			continue
		}
		first = append(first, fmt.Sprintf("%s%d", key, 1+i))
		for slot := range slots {
			second = append(second, fmt.Sprintf("%s . %d . %d : %s", proto, 1+i, slot, endpoint(i, slot)))
		}
	}
	switch name {
	case noRules:
		return ""
	case tracking:
		return atTracked.rules(r.world)
	case staticRule:
		match := fmt.Sprintf("%s daddr %s %s dport %d", ip, serviceCIDRs[r.family], proto, servicePort)
		if r.nodePorts {
			match = fmt.Sprintf("%s daddr %s %s dport >= %d", ip, r.frontend(0).Addr(), proto, firstNodePort)
		}
		return rules("", fmt.Sprintf("%s dnat to %s", match, netip.AddrPortFrom(r.endpoint(0), endpointPort)))
	case oneLookup:
		return rules(mapOf("first", vip, to, first), fmt.Sprintf("dnat %s to %s map @first", ip, vip))
	case twoLookups:
		const number = "meta l4proto . meta mark . numgen random mod "
		maps := mapOf("first", vip, "meta mark", first) + mapOf("second", number+"2", to, second)
		return rules(maps,
			fmt.Sprintf("meta mark set %s map @first; dnat %s to %s%d map @second", vip, ip, number, slots))
	}
	return fmt.Sprintf(baseChains, ip, "", "", "")
}

// mapOf returns a map for nft. Its fixed size is twice the number of its elements, as in the tables of the program.
func mapOf(name, key, data string, elements []string) string {
	return fmt.Sprintf(" map %s { typeof %s : %s; size %d; elements = {\n%s } }\n", name, key, data, 2*len(elements),
		strings.Join(elements, ",\n"))
}

// undisturbed calls f on a thread that other programs do not interrupt.
func undisturbed(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const resetOnFork = 1
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	first := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: resetOnFork}
	if err := unix.SchedSetAttr(0, first, 0); err != nil {
		return err
	}
	return errors.Join(f(), unix.SchedSetAttr(0, before, 0))
}
