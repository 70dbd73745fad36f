package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPacketSizes: a size is written as it is read.
func TestPacketSizes(t *testing.T) {
	for _, text := range packetSizes {
		if z, err := parsePacketSize(text); err != nil || z.String() != text {
			t.Errorf("%q: %v, %v", text, z, err)
		}
	}
	if z, err := parsePacketSize("1000"); err == nil {
		t.Errorf("a size without endpoints is %v, want an error", z)
	}
}

// TestEndpointsHaveOneService: the endpoints of all Services are numbered without gaps.
func TestEndpointsHaveOneService(t *testing.T) {
	for _, z := range []size{{100, 10, inet.IPv4}, {100, mixed, inet.IPv4}} {
		next := 0
		for i := range z.services {
			if got := z.firstOf(i); got != next || z.endpointsOf(i) < 1 {
				t.Errorf("%s: the endpoints of Service %d begin with %d, want %d", z, i, got, next)
			}
			next += z.endpointsOf(i)
		}
	}
}

// TestRulesetsTranslate: each ruleset without a program forwards all packets, and those with a lookup translate them.
func TestRulesetsTranslate(t *testing.T) {
	for _, text := range []string{"10x1", "10x10 UDP", "40xmixed IPv6", "40xmixed IPv6 UDP"} {
		t.Run(text, func(t *testing.T) { rulesetsTranslate(t, text) })
	}
}

func rulesetsTranslate(t *testing.T, text string) {
	z, err := parsePacketSize(text)
	lab.Must(t, err)
	ctx, l := context.Background(), lab.ForTest(t, packetLab)
	names := []string{noRules, tracking, emptyNAT, staticRule, oneLookup, twoLookups}
	r := &rulesets{timer: &timer{world: &world{size: z.size, udp: z.udp, lab: l}}, names: names, dir: t.TempDir()}
	t.Cleanup(r.close)
	lab.Must(t, r.open(ctx))
	for i, name := range names {
		lab.Must(t, r.load(ctx, name, r.sites[i].lab.Node))
	}
	for _, i := range rand.Perm(len(r.streams)) {
		lab.Must(t, lab.Err(r.burst(&r.streams[i])))
	}
	for i, name := range names {
		lab.Check(t, r.sites[i].allArrived(ctx), "%s", name)
	}
	// Packets to a VIP are dropped at the ends, so the check above has proved that the rules translate.
	lab.Must(t, load(ctx, r.sites[len(names)-1].lab.Node, "flush ruleset"))
	for i := range r.streams {
		if strings.HasSuffix(string(r.streams[i].quantity), twoLookups) {
			lab.Must(t, lab.Err(r.burst(&r.streams[i])))
		}
	}
	if err := r.sites[len(names)-1].allArrived(ctx); err == nil {
		t.Error("packets arrived without a translation")
	}
}

// TestFirstPacketsAreJudged: a quotient is the median of the quotients of turns, and a quotient above its bound fails.
func TestFirstPacketsAreJudged(t *testing.T) {
	r, z := &Report{}, packetSize{size: checkSize}
	for name, values := range map[string][]float64{
		twoLookups: {1, 2, 3}, kubeNftproxy: {2, 4, 9}, kubeProxyNftables: {4, 8, 3},
	} {
		f := r.of(name, z)
		f.Values[toNone], f.Values[toRandom], f.Values[toOne] = values, values, values
	}
	verdicts := map[string]string{}
	for _, o := range r.judgePackets(z.String()) {
		verdicts[o.Test] = o.Action
	}
	for name, want := range map[string]string{
		"first_packet_to_no_Service,_of_kube-proxy":   "fail", // 0.5, at most 0.4
		"first_packet_to_a_random_VIP,_of_kube-proxy": "pass", // 0.5, at most 1
		"first_packet_to_a_random_VIP,_of_the_floor":  "pass", // 2, at most 2.5
	} {
		lab.Same(t, want, verdicts[name], "%s: verdicts[name]", name)
	}
	for _, line := range []string{
		"| two lookups (VIP → number → endpoint) | 2s (1s – 3s) | 2s (1s – 3s) | 1.00 | 0.25 | 2s (1s – 3s) | 1.00 |",
		"| kube-nftproxy | 4s (2s – 9s) | 4s (2s – 9s) | 2.00 | 0.50 | 4s (2s – 9s) | 2.00 |",
	} {
		if !strings.Contains(r.packets(), line+"\n") {
			t.Errorf("the page lacks %q:\n%s", line, r.packets())
		}
	}
	if list := (&Report{}).judgePackets(z.String()); list[0].Action != "fail" {
		t.Errorf("nothing was measured: %v", list)
	}
}
