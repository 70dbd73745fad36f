package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// size is the number of Services, the number of endpoints of each, or mixed, and the family of all addresses.
type size struct {
	services, endpoints int
	family              inet.Family
}

// mixed stands for the numbers of endpoints in mix. Half of the Services have one endpoint.
const mixed = 0

var mix = [...]int{1, 2, 1, 3, 1, 5, 1, 2, 1, 3, 1, 8, 1, 2, 1, 3, 1, 10, 1, 40}

// String returns, for example, "10000x10", "10000xmixed", or "10000x10 IPv6".
func (z size) String() string {
	s := fmt.Sprintf("%dx%d", z.services, z.endpoints)
	if z.endpoints == mixed {
		s = fmt.Sprintf("%dxmixed", z.services)
	}
	if z.family != inet.IPv4 {
		s += " " + z.family.String()
	}
	return s
}

// round is one size with its programs and measurements.
type round struct {
	size
	programs []string
	effort   effort
}

// effort holds numbers of repetitions: kube-proxy takes seconds where kube-nftproxy takes a fraction of a millisecond.
type effort struct {
	// changes is the number of single changes of each kind, ours that for kube-nftproxy. spread is the number of changes in quick
	// succession.
	changes, ours, spread int
	// again is the number of repetitions for kube-nftproxy of measurements made once for others: starts, restarts, and many
	// changes at once.
	again int
	// idle is the duration of the measurement of idle processor time.
	idle time.Duration
	// beside is the number of single changes while another program changes nftables, too: see bystander.go.
	beside int
	// noBurst omits many changes at once, for which an emulated API server is too slow.
	noBurst bool
	// calm is the idle time of the API server before a program starts.
	calm time.Duration
	// rolling adds Services with many endpoints and their updates.
	rolling bool
	// packets is the number of timed packets of each kind. It also determines the rounds of connections.
	packets int
	// placements is the number of times that the rules are created for packets: with the same rules, a new connection takes 0.25
	// µs more or less, depending on the location of the elements in the kernel's memory.
	placements int
	// onlyPackets omits all measurements but those of packets.
	onlyPackets bool
}

// plan lists the measurements. kube-proxy takes minutes to hours for the large sizes, so these are for kube-nftproxy only.
func (s settings) plan() []round {
	const idle = 20 * time.Second
	all, both, ours := []string{kubeProxyIptables, kubeProxyNftables, kubeNftproxy}, []string{kubeProxyNftables, kubeNftproxy}, []string{kubeNftproxy}
	switch {
	case s.emulated:
		return emulatedPlan
	case s.check:
		return []round{{size{1000, 10, inet.IPv4}, both, effort{changes: 2, ours: 20, again: 4, spread: 200, beside: 2}}}
	case s.quick:
		return []round{{size{1000, 10, inet.IPv4}, both, effort{changes: 4, ours: 30, again: 4, spread: 100, idle: idle / 2, beside: 3, packets: 20000, placements: 2}}}
	}
	large := effort{ours: 100, again: 4, idle: idle, beside: 3}
	timed := large
	timed.packets, timed.placements = 60000, 3
	ipv6 := effort{packets: timed.packets, placements: timed.placements, onlyPackets: true}
	return []round{
		{size{1000, 10, inet.IPv4}, all, effort{changes: 10, ours: 100, again: 4, spread: 1000, idle: idle, beside: 3, rolling: true, packets: 60000, placements: 3}},
		{size{10000, 10, inet.IPv4}, both, effort{changes: 6, ours: 200, again: 4, spread: 1000, idle: idle, beside: 3, packets: 60000, placements: 3}},
		{size{10000, 10, inet.IPv6}, both, ipv6},
		{size{5000, 50, inet.IPv4}, ours, large},
		{size{45000, 1, inet.IPv4}, ours, large},
		{size{50000, 10, inet.IPv4}, ours, timed},
	}
}

func measureAll(ctx context.Context, s settings) (*Report, error) {
	report := newReport(s.output)
	for _, r := range s.plan() {
		if !wanted(s.only, r.size.String()) {
			continue
		}
		if err := measureRound(ctx, s, r, report); err != nil {
			return nil, fmt.Errorf("%s: %w", r.size, err)
		}
	}
	return report, nil
}

// measureRound measures one program after the other on a cluster of one size.
func measureRound(ctx context.Context, s settings, r round, report *Report) error {
	fill := func(w *world) error {
		more := []func(){w.putPacketServices}
		if r.effort.rolling {
			more = append(more, w.putRolling)
		}
		return w.fill(ctx, more...)
	}
	return inWorld(ctx, r.size, packetLab, fill, func(w *world, kubeconfig, dir string) error {
		for _, name := range r.programs {
			if !wanted(s.programs, name) {
				continue
			}
			p := newProxy(name, s, r.family, kubeconfig, w.lab.Node, filepath.Join(dir, name+".log"))
			if err := p.measure(ctx, w, effortOf(name, r.effort), report.of(name, r.size)); err != nil {
				return fmt.Errorf("measure %s: %w", name, err)
			}
			if name == kubeNftproxy && !r.effort.onlyPackets {
				all, err := w.planner(ctx)
				if err != nil {
					return err
				}
				if err := measureBatch(ctx, all, report.find(name, r.size.String())); err != nil {
					return fmt.Errorf("measure a bare batch: %w", err)
				}
			}
		}
		return nil
	})
}

// effortOf increases the repetitions of cheap measurements.
func effortOf(name string, e effort) effort {
	const times = 10
	if name == kubeNftproxy {
		e.changes, e.beside = e.ours, e.beside*times
		return e
	}
	e.again = 0
	return e
}
