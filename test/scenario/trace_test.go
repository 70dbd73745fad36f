package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// checkTrace compares traces through the kernel's rules with the lines of the scenario. A line that depends on earlier ones is
// checked when its packets are sent.
func (r *rig) checkTrace(t *testing.T, st *step, tr *traffic) {
	t.Helper()
	lines, err := parsePackets(st.packets)
	if err != nil {
		t.Fatalf("step %d: packets: %v", st.number, err)
	}
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.protocol == 0 }) // without ports
	ordered := func(l line) bool { return l.inOrder() }
	for _, err := range r.foretellAll(tr, slices.DeleteFunc(slices.Clone(lines), ordered)) {
		t.Errorf("step %d: %v", st.number, err)
	}
	tr.foretell = func(l line) error {
		if l.protocol == 0 || l.stays || l.flow != "" {
			return nil // not the first packet
		}
		return errors.Join(r.foretellAll(tr, []line{l})...)
	}
}

// foretellAll compares lines with the traces of their packets.
func (r *rig) foretellAll(tr *traffic, lines []line) (errs []error) {
	err := r.lab.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		var tables [2]*read.Table
		for _, l := range lines {
			table := &tables[inet.FamilyOf(l.to.Addr())]
			if *table == nil {
				if *table, err = read.Load(conn, inet.FamilyOf(l.to.Addr()), plan.TableName); err != nil {
					return err
				}
			}
			if err := r.foretell(tr, l, trace.Config{Table: *table, Elements: conn, Routes: host.Routes{}}); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", l.text, err))
			}
		}
		return nil
	})
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

// foretell compares one line. It runs in the node's namespace.
func (r *rig) foretell(tr *traffic, l line, c trace.Config) error {
	h, err := tr.host(l.from)
	if err != nil {
		return err
	}
	from := l.source
	if !from.IsValid() && h != r.lab.Node {
		from = h.Addr(l.to.Addr())
	}
	p, err := trace.From(from, l.to, l.protocol, c.Routes)
	if err != nil {
		return err
	}
	got, err := trace.Follow(c, p)
	if err != nil {
		return err
	}
	return r.compare(tr, l, h, got)
}

// compare compares a trace with a line.
func (r *rig) compare(tr *traffic, l line, h *lab.Host, got *trace.Trace) error {
	want := r.wanted(l, h)
	if chosen := tr.pins[l.pin]; l.affinity && chosen != "" {
		want = slices.DeleteFunc(want, func(s string) bool { return !strings.HasPrefix(s, chosen+" ") })
	}
	var foretold []string
	sum := 0.0
	for _, w := range got.Ways {
		sum += w.Probability
		foretold = append(foretold, r.inWords(w, l)...)
	}
	if sum < 1-1e-9 || sum > 1+1e-9 {
		return fmt.Errorf("the probabilities of %d ways add up to %v", len(got.Ways), sum)
	}
	slices.Sort(foretold)
	foretold = slices.Compact(foretold)
	same := slices.Equal(want, foretold)
	if l.affinity { // session affinity keeps one of them
		same = len(foretold) > 0 && !slices.ContainsFunc(foretold, func(s string) bool { return !slices.Contains(want, s) })
	}
	if l.outcome != lab.Answered { // a packet to an unused address may be lost or rejected elsewhere
		same = same || len(foretold) == 1 && foretold[0] == "lost" && l.outcome != lab.Refused
	}
	if !same {
		return fmt.Errorf("foretold %s: %+v", strings.Join(foretold, ", "), got)
	}
	return nil
}

// wanted returns a line's results.
func (r *rig) wanted(l line, h *lab.Host) (list []string) {
	if l.outcome != lab.Answered {
		return []string{fmt.Sprint(l.outcome)}
	}
	for _, s := range l.servers {
		var seen netip.Addr
		switch s.seen {
		case "kept":
			if seen = h.Addr(l.to.Addr()); l.source.IsValid() {
				seen = l.source
			}
		case "node":
			seen = r.lab.Node.Addr(l.to.Addr())
		default:
			seen, _ = netip.ParseAddr(s.seen)
		}
		list = append(list, fmt.Sprintf("%s sees %s", s.name, seen))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// inWords returns a trace's result in the words of [rig.wanted].
func (r *rig) inWords(w trace.Way, l line) []string {
	switch w.Outcome {
	case trace.Refused:
		return []string{fmt.Sprint(lab.Refused)}
	case trace.Dropped, trace.Passed: // no other node of the lab translates it
		return []string{fmt.Sprint(lab.TimedOut)}
	case trace.Unknown:
		return []string{"unknown: " + w.Why}
	}
	for _, h := range slices.Concat([]*lab.Host{r.lab.Node}, r.lab.Pods, r.lab.Remotes) {
		if h.Addr(w.To.Addr()) != w.To.Addr() && (h != r.lab.Node || !w.Here) {
			continue
		}
		served := w.To.Port() == firstPort || w.To.Port() == secondPort || w.To.Port() == echoPort && l.protocol == inet.TCP
		if !served || h == r.lab.Node && l.protocol == inet.SCTP {
			return []string{fmt.Sprint(lab.Refused)}
		}
		return []string{fmt.Sprintf("%s sees %s", h.Name, w.Source)}
	}
	return []string{"lost"}
}
