package loopback

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestRefusals sends packets to processes that listen on node ports. The rules refuse and count only the packets to
// UDP and SCTP node ports on loopback.
func TestRefusals(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Clients: 1})
	const number, other = 30053, 30054
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		for _, port := range []uint16{number, other} {
			if _, err := l.Node.Serve(p, port); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := NewRefusals(inet.Families[:], "kube-nftproxy")
	commit := func() {
		t.Helper()
		lab.Must(t, l.Node.Do(r.Commit))
	}
	probe := func(from *lab.Host, p inet.Protocol, to netip.Addr, port uint16, want lab.Outcome) {
		t.Helper()
		if a := from.Probe(t.Context(), p, netip.AddrPortFrom(to, port), lab.Options{}); a.Outcome != want {
			t.Errorf("%s -> %s %s port %d: %v, want %v", from.Name, p, to, port, a, want)
		}
	}
	set := func(refused bool) {
		for _, f := range inet.Families {
			for _, p := range Refused {
				r.Set(model.Key{Port: number, Protocol: p, Family: f}, refused)
			}
		}
		commit()
	}
	counted := func(want uint64) {
		t.Helper()
		for _, f := range inet.Families {
			n, err := r.Packets(f)
			if err != nil || n[inet.UDP] != want || n[inet.SCTP] != want {
				t.Errorf("%s: %v packets, %v; want %d of each protocol", f, n, err, want)
			}
		}
	}
	refused := func() {
		t.Helper()
		for _, f := range inet.Families {
			for _, p := range Refused {
				probe(l.Node, p, inet.Localhost[f], number, lab.Refused)
			}
		}
	}
	set(true)
	refused()
	counted(1)
	refused()
	counted(2)
	for _, f := range inet.Families {
		probe(l.Node, inet.TCP, inet.Localhost[f], number, lab.Answered)
		for _, p := range Refused {
			probe(l.Node, p, inet.Localhost[f], other, lab.Answered)
			probe(l.Node, p, l.Node.Addrs()[f], number, lab.Answered)
			probe(l.Clients[0], p, l.Node.Addrs()[f], number, lab.Answered)
		}
	}
	out, err := l.Node.Command(t.Context(), "nft", "list", "table", "ip", "kube-nftproxy-loopback").CombinedOutput()
	if want := "ct state new ip daddr 127.0.0.0/8 meta l4proto . th dport @ports meta l4proto @packets reject"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v; no %q in:\n%s", err, want, out)
	}

	set(false)
	for _, f := range inet.Families {
		for _, p := range Refused {
			probe(l.Node, p, inet.Localhost[f], number, lab.Answered)
		}
	}
	counted(2)

	if out, err := l.Node.Command(t.Context(), "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := r.Packets(inet.IPv4); err == nil {
		t.Error("no error, although the table was deleted")
	}
	set(true)
	refused()
	counted(1)

	// A server writes the tables again after it has failed to read the counters.
	s := New(Config{Refusals: r})
	s.Serve(true)
	lab.Must(t, lab.Err(s.sync(t.Context())))
	lab.Must(t, lab.Err(l.Node.Command(t.Context(), "nft", "flush", "ruleset").CombinedOutput()))
	if _, err := s.Refused(inet.IPv4); err == nil {
		t.Error("no error, although the table was deleted")
	}
	lab.Must(t, lab.Err(s.sync(t.Context())))
	refused()

	// A process for one family deletes the table of the other family at its first commit, and its own table when it
	// closes.
	four := NewRefusals(inet.Families[:1], "kube-nftproxy")
	lab.Must(t, l.Node.Do(four.Commit))
	probe(l.Node, inet.UDP, inet.Localhost[inet.IPv6], number, lab.Answered)
	lab.Must(t, l.Node.Do(func() error { return four.Close(true) }))
	out, err = l.Node.Command(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v; rules left:\n%s", err, out)
	}
	if err := r.Close(false); err != nil {
		t.Error(err)
	}
}
