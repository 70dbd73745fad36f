package switchover

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// traffic is the load and the flows during a switch.
type traffic struct {
	loads map[inet.Protocol]*load
	// old are flows that stay open for all switches. A broken one is replaced before the next switch.
	old []*flow
	// fresh describes the flows that are opened before each switch.
	fresh []ends
	// margin is the time of undisturbed traffic before and after a switch.
	margin time.Duration
	// life ends the old flows.
	life context.Context
}

// ends describes a flow: its source, protocol and destination.
type ends struct {
	from  *lab.Host
	proto inet.Protocol
	to    netip.AddrPort
}

// newTraffic returns traffic to all targets: loads from one host, a fresh flow from another, and old flows from each host of old.
func newTraffic(ctx context.Context, loader *lab.Host, fresh *lab.Host, old []*lab.Host, targets []netip.AddrPort) (*traffic, error) {
	t := &traffic{life: ctx, margin: time.Second, loads: map[inet.Protocol]*load{
		inet.TCP: {host: loader, proto: inet.TCP, targets: targets, every: time.Millisecond},
		inet.UDP: {host: loader, proto: inet.UDP, targets: targets, every: 5 * time.Millisecond},
	}}
	for _, to := range targets {
		for proto := range t.loads {
			t.fresh = append(t.fresh, ends{fresh, proto, to})
			for _, from := range old {
				f, err := openFlow(ctx, from, proto, to)
				if err != nil {
					return nil, err
				}
				t.old = append(t.old, f)
			}
		}
	}
	return t, nil
}

// figures are the results of the traffic during a switch.
type figures struct {
	// tcp and udp are the tallies of the loads.
	tcp, udp *tally
	// flows is the number of all flows, old the number of flows that stay open for all switches.
	flows, old int
	flowCounts
	// broken has the reasons of broken connections, losses the descriptions of messages without an answer.
	broken []error
	losses []string
}

// during starts all traffic, runs f, and returns the results of the traffic. An error means that traffic could not be started.
func (t *traffic) during(ctx context.Context, f func()) (*figures, error) {
	before, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := &figures{old: len(t.old), flows: len(before)}
	type result struct {
		*tally
		err error
	}
	results := map[inet.Protocol]chan result{}
	for proto, l := range t.loads {
		c := make(chan result, 1)
		results[proto] = c
		go func() {
			tally, err := l.run(ctx)
			c <- result{tally, err}
		}()
	}
	rest := func() { sleepUntil(ctx, time.Now().Add(t.margin)) }
	rest()
	f()
	rest()
	stop()
	for f, was := range before {
		now, broken := f.counts()
		out.flowCounts = out.plus(now.minus(was))
		out.losses = append(out.losses, f.forget()...)
		if broken != nil {
			out.broken = append(out.broken, broken)
		}
		if !slices.Contains(t.old, f) {
			f.close()
		}
	}
	tcp, udp := <-results[inet.TCP], <-results[inet.UDP]
	out.tcp, out.udp = tcp.tally, udp.tally
	for _, r := range []result{tcp, udp} {
		if r.err != nil {
			return out, r.err
		}
	}
	return out, nil
}

// open replaces broken old flows, opens the fresh ones, and returns the counts of all flows.
func (t *traffic) open(ctx context.Context) (map[*flow]flowCounts, error) {
	counts := map[*flow]flowCounts{}
	for i, f := range t.old {
		if _, broken := f.counts(); broken != nil {
			replacement, err := openFlow(t.life, f.from, f.proto, f.to)
			if err != nil {
				return nil, err
			}
			t.old[i] = replacement
		}
		counts[t.old[i]], _ = t.old[i].counts()
	}
	for _, e := range t.fresh {
		f, err := openFlow(ctx, e.from, e.proto, e.to)
		if err != nil {
			return nil, err
		}
		counts[f] = flowCounts{}
	}
	return counts, nil
}

// TestTrafficNoticesFailures sends traffic directly to a pod, and injects faults. The results must have the right kinds of failures.
func TestTrafficNoticesFailures(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	server := l.Pods[0]
	serve(t, server)
	targets := []netip.AddrPort{netip.AddrPortFrom(server.IPv4, echoPort), netip.AddrPortFrom(server.IPv6, echoPort)}
	traffic, err := newTraffic(t.Context(), l.Client, l.Client, []*lab.Host{l.Node}, targets)
	lab.Must(t, err)
	traffic.margin = 400 * time.Millisecond
	table := "add table inet x; add chain inet x f { type filter hook forward priority 0; policy accept; }; "
	for _, tc := range []struct {
		name  string
		rule  string
		kinds map[inet.Protocol]string
		// lossy is true if flows lose messages or segments.
		lossy bool
	}{
		{name: "no fault"},
		// The rule for UDP matches only requests: the client of a rejected answer would wait, and not notice a refusal.
		{"refused", "add rule inet x f tcp flags & (syn|ack) == syn reject with tcp reset; " +
			"add rule inet x f udp dport 8080 reject",
			map[inet.Protocol]string{inet.TCP: "refused", inet.UDP: "refused"}, true},
		{"refused by ICMP", "add rule inet x f tcp flags & (syn|ack) == syn reject",
			map[inet.Protocol]string{inet.TCP: "refused"}, false},
		{"segments lost later", "add rule inet x f tcp dport 8080 tcp flags & (syn|psh) == psh drop",
			map[inet.Protocol]string{inet.TCP: "segment lost"}, true},
		{"all lost", "add rule inet x f drop", map[inet.Protocol]string{inet.TCP: "segment lost", inet.UDP: "timeout"}, true},
		{"reset later", "add rule inet x f tcp dport 8080 tcp flags & (syn|psh) == psh reject with tcp reset", map[inet.Protocol]string{inet.TCP: "reset"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			figures, err := traffic.during(t.Context(), func() {
				if tc.rule != "" {
					nft(t, l.Node, table+tc.rule)
					sleepUntil(t.Context(), time.Now().Add(500*time.Millisecond))
					nft(t, l.Node, "delete table inet x")
				}
			})
			lab.Must(t, err)
			for proto, tally := range map[inet.Protocol]*tally{inet.TCP: figures.tcp, inet.UDP: figures.udp} {
				want := map[string]int{}
				if kind := tc.kinds[proto]; kind != "" {
					want[kind] = tally.kinds()[kind]
					if want[kind] < 10 || tally.made-len(tally.failures) < 10 {
						t.Errorf("%s: %d of %d failed, want failures during the fault, and answers before and after it", proto,
							want[kind], tally.made)
					}
				}
				got := tally.kinds()
				if tc.kinds[proto] == "reset" {
					delete(got, "segment lost") // the client ignored an early reset, and its retransmission succeeded after the rule was deleted
				}
				lab.Same(t, want, got, "%s: failures", proto)
				if got := tally.servers[server.Name] + len(tally.failures); got != tally.made || tally.made < 100 {
					t.Errorf("%s: %d attempts, of which %d have a result", proto, tally.made, got)
				}
			}
			if lossy := figures.lost+figures.retransmitted > 0; lossy != tc.lossy {
				t.Errorf("flows: lost %d messages, sent %d segments again; want some: %t", figures.lost, figures.retransmitted, tc.lossy)
			}
			if figures.flows != 8 || figures.sent < figures.flows { // a busy machine sends fewer messages than the pace permits
				t.Errorf("%d flows, %d messages", figures.flows, figures.sent)
			}
		})
	}
}

// serve starts servers of both protocols.
func serve(t *testing.T, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		if _, err := h.Serve(inet.UDP, echoPort); err != nil {
			t.Fatal(err)
		}
		if _, err := h.ServeEcho(echoPort); err != nil {
			t.Fatal(err)
		}
	}
}

// nft runs commands of nft on a host.
func nft(t *testing.T, h *lab.Host, commands string) string {
	t.Helper()
	return h.Run(t, "nft", commands)
}
