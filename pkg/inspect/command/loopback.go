package command

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// onLoopback returns the trace of a connection from this node to a node port on loopback. The program accepts such
// connections itself, or refuses them with other tables, so the tables of Services do not show it. onLoopback returns
// nil for other packets, or if the program does not answer.
func (q *question) onLoopback(ctx context.Context, p trace.Packet) *trace.Trace {
	if !p.Own || !p.To.Addr().IsLoopback() {
		return nil
	}
	var v view.Services
	if err := q.client().Get(ctx, control.PageServices, &v); err != nil {
		return nil
	}
	addr, port := p.To.Addr(), strconv.Itoa(int(p.To.Port()))
	for i := range v.Services {
		s := &v.Services[i]
		for sp, f := range s.Frontends() {
			switch {
			case sp.Protocol != p.Protocol.String() || sp.Family != inet.FamilyOf(addr).String() || f.Address != port:
			case f.LoopbackRefused:
				t := newRelay(p, s, sp)
				t.Ways = []trace.Way{{Probability: 1, Outcome: trace.Refused, To: p.To, Source: p.From, How: "with ICMP port unreachable",
					Why: "node port on loopback: only TCP node ports are served there"}}
				return t
			case f.Loopback == addr.String() && f.LostTo == "":
				return relayed(p, s, sp, f)
			}
		}
	}
	return nil
}

// newRelay returns a trace to a service port, without any rule of the tables of Services.
func newRelay(p trace.Packet, s *view.Service, sp *view.ServicePort) *trace.Trace {
	t := &trace.Trace{Packet: p, Frontend: s.Namespace + "/" + s.Name}
	if sp.Name != "" {
		t.Frontend += ":" + sp.Name
	}
	return t
}

// relayed returns the trace of a connection that the program accepts.
func relayed(p trace.Packet, s *view.Service, sp *view.ServicePort, f *view.Frontend) *trace.Trace {
	t := newRelay(p, s, sp)
	var to []netip.AddrPort
	for i := range sp.Endpoints {
		e := &sp.Endpoints[i]
		at, err := netip.ParseAddrPort(e.Address)
		if err == nil && (e.Local && f.Policy == "Local" || e.Cluster && f.Policy == "Cluster") && !slices.Contains(to, at) {
			to = append(to, at)
		}
	}
	if len(to) == 0 {
		t.Ways = []trace.Way{{Probability: 1, Outcome: trace.Refused, To: p.To, Source: p.From, How: "with a TCP reset",
			Why: fmt.Sprintf("node port on loopback, policy %s: no endpoint can be used, so kube-nftproxy does not "+
				"listen", f.Policy)}}
		return t
	}
	why := "node port on loopback: kube-nftproxy accepts the connection itself, and opens another connection to an " +
		"endpoint"
	if sp.AffinitySeconds > 0 {
		why += fmt.Sprintf("; with session affinity, all clients on this node share one endpoint until none has "+
			"connected for %d s", sp.AffinitySeconds)
	}
	routes := host.Routes{}
	for _, at := range to {
		w := trace.Way{Probability: 1 / float64(len(to)), Outcome: trace.Translated, To: at, Why: why, Masqueraded: true,
			MasqueradedWhy: "kube-nftproxy opens the connection"}
		typ, err := routes.Type(at.Addr())
		if err == nil {
			_, w.Source, err = routes.Out(at.Addr())
		}
		w.Here, w.NoRoute = typ == unix.RTN_LOCAL, err != nil
		t.Ways = append(t.Ways, w)
	}
	return t
}
