package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// quotient returns the median of the quotients of a quantity of two nodes in the same turn, and false without one.
func quotient(over, under *Figures, q quantity) (float64, bool) {
	if over == nil || under == nil || len(over.Values[q]) == 0 || len(over.Values[q]) != len(under.Values[q]) {
		return 0, false
	}
	var list []float64
	for i, v := range over.Values[q] {
		list = append(list, v/under.Values[q][i])
	}
	return quantileOf(list, 0.5), true
}

// floor returns the least that a program needs whose rules find a Service in a map: one lookup if all Services have one
// endpoint, otherwise two.
func (r *Report) floor(z string) *Figures {
	if strings.Contains(z+" ", "x1 ") {
		return r.find(oneLookup, z)
	}
	return r.find(twoLookups, z)
}

// packets returns the tables of first packets in Markdown, one for each size.
func (r *Report) packets() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d processors, %s; kube-proxy %s.\n", r.Kernel, r.CPUs, r.Go, r.Versions)
	for _, z := range r.sizes() {
		fmt.Fprintf(&b, "\n### First packets: %s\n\n", titleOf(z))
		udp := strings.HasSuffix(z, " UDP")
		head := "| | no Service | random VIP | of the floor | of kube-proxy | one VIP | of the floor |"
		if udp {
			head += " " + string(unanswered) + " |"
		}
		b.WriteString(head + "\n" + strings.Repeat("|---", strings.Count(head, "|")-1) + "|\n")
		theirs := r.find(kubeProxyNftables, z)
		for _, f := range r.rowsOf(z) {
			floor := r.floor(z)
			cells := []string{f.Program, f.cell(toNone), f.cell(toRandom), share(f, floor, toRandom),
				share(f, theirs, toRandom), f.cell(toOne), share(f, floor, toOne)}
			if f.Program == emptyNAT {
				cells[1] = "0 (the whole packet: " + f.cell(wholePacket) + ")"
			}
			if udp {
				cells = append(cells, f.cell(unanswered))
			}
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		}
	}
	return b.String()
}

// rowsOf returns the figures of a size in the order of rulesetNames, and then those of other programs.
func (r *Report) rowsOf(z string) (list []*Figures) {
	for _, name := range rulesetNames {
		if f := r.find(name, z); f != nil {
			list = append(list, f)
		}
	}
	for _, f := range r.Figures {
		if f.Size == z && !slices.Contains(rulesetNames, f.Program) {
			list = append(list, f)
		}
	}
	return list
}

// share returns a quotient as text.
func share(over, under *Figures, q quantity) string {
	v, ok := quotient(over, under, q)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// packetParts returns the parts of pages with figures of docs/benchmarks-packets.json.
func (r *Report) packetParts() []part {
	return []part{{"docs/benchmarks-details.md", "packets", r.packets()}}
}

// packetBound is the greatest allowed quotient of two nodes. Bounds are far above the usual values: a violation means
// that a rule or a lookup was added for most packets.
type packetBound struct {
	name  string
	q     quantity
	under func(r *Report, z string) *Figures
	most  float64
}

func ofKubeProxy(r *Report, z string) *Figures { return r.find(kubeProxyNftables, z) }

var packetBounds = []packetBound{
	{"first packet to no Service, of kube-proxy", toNone, ofKubeProxy, 0.4},
	{"first packet to a random VIP, of kube-proxy", toRandom, ofKubeProxy, 1},
	{"first packet to a random VIP, of the floor", toRandom, (*Report).floor, 2.5},
}

// checkPackets measures first packets with a small cluster, and compares them with the bounds.
func checkPackets(ctx context.Context, s settings) (list []outcome, err error) {
	s.turns, s.quick = 2, true
	r, z := reportOf("", ""), packetSize{size: checkSize}
	if err := measureRulesetsOf(ctx, s, z, r); err != nil {
		return nil, err
	}
	return r.judgePackets(z.String()), nil
}

func (r *Report) judgePackets(z string) (list []outcome) {
	for _, b := range packetBounds {
		v, ok := quotient(r.find(kubeNftproxy, z), b.under(r, z), b.q)
		o := outcome{Action: "pass", Package: "test/compare", Test: strings.ReplaceAll(b.name, " ", "_")}
		o.text = fmt.Sprintf("%s: %.2f, at most %.2f", b.name, v, b.most)
		switch {
		case !ok:
			o.Action, o.text = "fail", b.name+": was not measured"
		case v > b.most:
			o.Action, o.text = "fail", o.text+": the rules of most packets have grown"
		}
		list = append(list, o)
	}
	return list
}
