package apply

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/compare"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The following tests belong to pkg/inspect/compare. They are here because they need tables with retained chains.

// compared returns the differences between the kernel and a new plan of the test's cluster.
func compared(t *testing.T) *view.Verification {
	t.Helper()
	p := plan.New(options())
	cluster(p)
	v, err := compare.Verify(p, 10)
	lab.Must(t, err)
	return v
}

func inWords(v *view.Verification) (list []string) {
	for i := range v.Differences {
		list = append(list, v.Differences[i].String())
	}
	return list
}

func TestNoDifferences(t *testing.T) {
	k, p := synced(t)
	v := compared(t)
	if v.Total != 0 || v.Tables != 2 || v.Rules < 50 {
		t.Errorf("after a sync: %+v, want no differences in two tables with their rules", v)
	}
	lab.Same(t, len(planned(k, p)), v.Elements, "elements were compared")
	// After a change, unused chains and their elements stay for a while. They are not differences.
	s := everything(300, 7, 0, true)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	p.Set(s.Name, nil)
	mustSync(t, k, p, Partial)
	if v := compared(t); v.Total != 0 {
		t.Errorf("with chains that wait to be retired: %q", inWords(v))
	}
}

// TestDifferencesAreNamed changes the tables with nft, as another program would.
func TestDifferencesAreNamed(t *testing.T) {
	const endpoint = "table ip kube-nftproxy, map endpoints, tcp . 8000:2000 . "
	for name, c := range map[string]struct {
		command string
		want    []string
	}{
		"an element is deleted": {
			"delete element ip kube-nftproxy endpoints { tcp . 8000:2000 . 1 }",
			[]string{endpoint + "1 (default/svc-2:http): missing, should be 10.244.0.2"},
		},
		"an element too many": {
			"add element ip kube-nftproxy endpoints { tcp . 8000:2000 . 9 : 10.0.0.1 . 80 }",
			[]string{endpoint + "9 (default/svc-2:http): is 10.0.0.1 . 80, should not exist"},
		},
		"an element with another value": {
			"delete element ip kube-nftproxy endpoints { tcp . 8000:2000 . 1 }; " +
				"add element ip kube-nftproxy endpoints { tcp . 8000:2000 . 1 : 10.0.0.1 . 80 }",
			[]string{endpoint + "1 (default/svc-2:http): is 10.0.0.1 . 80, should be 10.244.0.2"},
		},
		"a Service's address is deleted": {
			"delete element ip kube-nftproxy services { 10.96.0.2 . tcp . 80 }",
			[]string{"table ip kube-nftproxy, map services, 10.96.0.2 . tcp . 80 (default/svc-2:http): missing, should be "},
		},
		"a rule is deleted": {
			"flush chain ip kube-nftproxy endpoints-of-4",
			[]string{"table ip kube-nftproxy, chain endpoints-of-4: is no rules, should be "},
		},
		"a rule too many": {
			"add rule ip kube-nftproxy endpoints-of-4 drop",
			[]string{"table ip kube-nftproxy, chain endpoints-of-4: is "},
		},
		"a base chain drops": {
			"chain ip6 kube-nftproxy prerouting { policy drop; }",
			[]string{"table ip6 kube-nftproxy, chain prerouting: is policy drop, should be policy accept"},
		},
		"a chain and a set of another program": {
			"add chain ip kube-nftproxy other-chain; add set ip kube-nftproxy other-set { type ipv4_addr; }",
			[]string{"table ip kube-nftproxy, set other-set: is an unknown set, should not exist",
				"table ip kube-nftproxy, chain other-chain: is an unknown chain, should not exist"},
		},
		"a table is dormant": {
			"add table ip kube-nftproxy { flags dormant; }",
			[]string{"table ip kube-nftproxy: is dormant, should be active"},
		},
		"a table is deleted": {
			"delete table ip6 kube-nftproxy",
			[]string{"table ip6 kube-nftproxy: missing, should be the table"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synced(t)
			run(t, "nft", c.command)
			v := compared(t)
			if v.Total != len(c.want) || len(v.Differences) != v.Total {
				t.Fatalf("%d differences, want %d: %q", v.Total, len(c.want), inWords(v))
			}
			for i, got := range inWords(v) {
				if !strings.HasPrefix(got, c.want[i]) {
					t.Errorf("difference %q, want %q...", got, c.want[i])
				}
			}
		})
	}
}

// TestManyDifferencesAreCounted: the list of differences has a limit, and the total counts all.
func TestManyDifferencesAreCounted(t *testing.T) {
	synced(t)
	run(t, "nft", "flush map ip kube-nftproxy endpoints; flush map ip kube-nftproxy services")
	v := compared(t)
	if v.Total <= 10 || len(v.Differences) != 10 {
		t.Errorf("%d differences, %d listed, want more than 10 and 10", v.Total, len(v.Differences))
	}
}

// TestARuleWithAnotherVerdict replaces the verdict of a rule. The number and comments of the rules stay.
func TestARuleWithAnotherVerdict(t *testing.T) {
	synced(t)
	listing := run(t, "nft", "-a", "list", "chain", "ip", "kube-nftproxy", "reject-packet")
	rule := regexp.MustCompile(`reject with tcp reset # handle (\d+)`).FindStringSubmatch(listing)
	if rule == nil {
		t.Fatalf("no such rule in\n%s", listing)
	}
	run(t, "nft", "replace rule ip kube-nftproxy reject-packet handle "+rule[1]+" accept")
	want := []string{"table ip kube-nftproxy, chain reject-packet: is other rules, should be the planned rules"}
	if diff := cmp.Diff(want, inWords(compared(t))); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, listing)
	}
}

// TestListing: the listing has tables, maps, chains and elements.
func TestListing(t *testing.T) {
	synced(t)
	text, err := compare.Listing(plan.TableName)
	lab.Must(t, err)
	for _, want := range []string{"table ip kube-nftproxy {", "table ip6 kube-nftproxy {", "map services {", "chain endpoints-of-4 {", "hook prerouting",
		"tcp . 8000:2000 . 1", "default/svc-2:http"} {
		lab.Contains(t, string(text), "the listing", want)
	}
}
