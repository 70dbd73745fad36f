package seccomp

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestShippedProfile: all names in deploy/seccomp are system calls of one of the two architectures, and the filter fits the kernel's limit.
func TestShippedProfile(t *testing.T) {
	p, err := Read("../../deploy/seccomp/kube-nftproxy.json")
	lab.Must(t, err)
	known := map[string]bool{}
	for _, architecture := range []string{"amd64", "arm64"} {
		numbers, err := Numbers(t.Context(), architecture)
		lab.Must(t, err)
		for name := range numbers {
			known[name] = true
		}
	}
	for _, r := range p.Syscalls {
		if len(r.Names) == 0 {
			t.Errorf("rule %q has no names", r.Comment)
		}
		for _, name := range r.Names {
			if !known[name] {
				t.Errorf("rule %q: %s is not a system call", r.Comment, name)
			}
		}
	}
	filter, err := p.Compile(t.Context())
	if err != nil || len(filter) > 4096 {
		t.Errorf("filter of %d instructions, want at most 4096: %v", len(filter), err)
	}
}
