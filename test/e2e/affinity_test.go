//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestSessionAffinityContinues: clients stay with their endpoints when the program is killed, restarted and finds changes, and when
// another program empties one of its chains. After a flush of the ruleset, they stay with their next endpoint.
func TestSessionAffinityContinues(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 4, Remotes: 2, Clients: 6})
	servers := slices.Concat(w.Pods[:3], w.Remotes)
	w.serve(servers...)
	svc := balanced()
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.apply(svc)
	w.applySlices("a", endpointsOf(servers[0]), endpointsOf(servers[1]), endpointsOf(servers[2]), endpointsOf(servers[3]),
		endpointsOf(servers[4]))
	d := w.start()
	d.awaitIdle(patience)

	clients := slices.Concat(w.Clients, w.Pods[3:], []*lab.Host{w.Node})
	addrs := w.webAddrs()
	// where returns the server of each client, in each protocol and family: always the same, at every address.
	where := func(when string) (out []string) {
		t.Helper()
		for _, c := range clients {
			for _, proto := range protocols {
				for _, f := range inet.Families {
					at := ""
					for _, to := range slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return inet.FamilyOf(a.Addr()) != f }) {
						a := c.Probe(t.Context(), proto, to, lab.Options{Timeout: patience})
						if a.Outcome != lab.Answered || at != "" && a.Server != at {
							t.Fatalf("%s: %s at %s by %s: %s, after %q", when, c.Name, to, proto, a, at)
						}
						at = a.Server
					}
					out = append(out, fmt.Sprintf("%s %s %s: %s", c.Name, proto, f, at))
				}
			}
		}
		return out
	}
	first := where("at first")
	stay := func(when string, want []string) {
		t.Helper()
		if got := where(when); !slices.Equal(got, want) {
			t.Errorf("%s: clients have moved: %q, want %q", when, got, want)
		}
	}

	d.Kill()
	stay("while nothing runs", first)
	d = w.start()
	d.awaitIdle(patience)
	stay("after a restart", first)

	d.Kill()
	w.apply(service("other"))
	d = w.start()
	d.awaitIdle(patience)
	stay("after a restart with changes", first)

	rules := func(want int) {
		t.Helper()
		eventually(t, patience, func() error {
			if got := len(d.lines("Synced", "full")); got < want {
				return fmt.Errorf("%d full syncs, want %d", got, want)
			}
			return nil
		})
	}
	full := len(d.lines("Synced", "full"))
	nft(t, w.Node, "flush chain ip kube-nftproxy services; flush chain ip6 kube-nftproxy services")
	rules(full + 1)
	stay("after a repair", first)

	nft(t, w.Node, "flush ruleset")
	rules(full + 2)
	second := where("after the ruleset was flushed")
	if slices.Equal(second, first) {
		t.Error("no client has moved although the kernel's map was flushed")
	}
	stay("coming again after that", second)
}
