package takeover

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestLoopbackGuarded: an empty chain is no guard.
func TestLoopbackGuarded(t *testing.T) {
	lab.EnterNamespace(t)
	for _, step := range []struct {
		command string
		want    bool
	}{
		{"", false},
		{"add table ip filter; add chain ip filter KUBE-FIREWALL", false},
		{"add rule ip filter KUBE-FIREWALL ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 drop", true},
		{"flush ruleset", false},
	} {
		if step.command != "" {
			lab.Run(t, "nft", step.command)
		}
		if got, err := LoopbackGuarded(); err != nil || got != step.want {
			t.Errorf("after %q: %t, %v; want %t", step.command, got, err, step.want)
		}
	}
}
