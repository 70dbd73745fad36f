package apply

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// synced returns a Kernel in a new network namespace with the tables of the test's cluster, and its planner.
func synced(t testing.TB) (*Kernel, *plan.Planner) {
	t.Helper()
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	cluster(p)
	mustSync(t, k, p, Full)
	return k, p
}

func checkKernel(t testing.TB, k *Kernel, p *plan.Planner) {
	t.Helper()
	lab.Same(t, planned(k, p), inKernel(t, k, p), "elements (-planned +in the kernel)")
}

func TestAChangeAfterAForeignChangeIsRepaired(t *testing.T) {
	for name, command := range map[string]string{
		"flush ruleset":     "flush ruleset",
		"delete one table":  "delete table ip6 kube-nftproxy",
		"delete an element": "delete element ip kube-nftproxy endpoints { tcp . 8000:2000 . 1 }",
		"add an element":    "add element ip kube-nftproxy endpoints { tcp . 8000:2000 . 4 : 10.0.0.1 . 80 }",
	} {
		t.Run(name, func(t *testing.T) {
			k, p := synced(t)
			run(t, "nft", command)
			// The larger Service needs exactly the element that nft has deleted or added, or a table that nft has deleted.
			s := everything(2, 6, 0, false)
			p.Set(s.Name, s)
			if r, err := k.Sync(p); err == nil && r.Kind == Partial {
				k.Doubt()
			} else if err == nil {
				t.Fatalf("the sync after the foreign change was %s", r.Kind)
			}
			mustSync(t, k, p, Full)
			checkKernel(t, k, p)
			mustSync(t, k, p, Nothing)
		})
	}
}

// TestAFlushIsRepairedInParts: after a flush, one batch writes the small Services, and a later batch writes the large Service.
func TestAFlushIsRepairedInParts(t *testing.T) {
	k, p := synced(t)
	large := wide(inet.IPv4, 1000, 500, 1)
	p.Set(large.Name, large)
	mustSync(t, k, p, Partial)
	hook := &afterRewrite{do: func() {
		listing := run(t, "nft", "list table ip kube-nftproxy")
		if has := strings.Contains(listing, large.Name.String()); has || !strings.Contains(listing, "10.96.0.1 ") {
			t.Errorf("the large Service is in the first batch: %t; it is:\n%s", has, listing)
		}
		if refused := run(t, "nft", "list set ip kube-nftproxy cluster-ips"); strings.Contains(refused, "elements") {
			t.Errorf("packets to a Service of a later batch are refused:\n%s", refused)
		}
		// As if the batches took two minutes:
		run(t, "nft", "flush set ip kube-nftproxy lease; flush set ip6 kube-nftproxy lease")
	}}
	k.atOnce, k.counts = 200, hook
	run(t, "nft", "flush ruleset")
	k.Doubt()
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
	if !leaseLasts(t, "ip") || !leaseLasts(t, "ip6") {
		t.Error("later batches do not renew the lease")
	}
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

// TestAStartWithoutTablesHasParts: after a reboot, small Services do not wait for large ones. If the first batch deletes
// the tables of kube-proxy, it has all Services.
func TestAStartWithoutTablesHasParts(t *testing.T) {
	for name, parts := range map[string]bool{"after a reboot": true, "in place of kube-proxy": false} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			k, p, first := open(t), plan.New(options()), ""
			cluster(p)
			large := wide(inet.IPv4, 1000, 500, 1)
			p.Set(large.Name, large)
			k.atOnce, k.counts = 200, &afterRewrite{do: func() { first = run(t, "nft", "list table ip kube-nftproxy") }}
			if !parts {
				run(t, "nft", "add table ip kube-proxy")
				k.TakeOver(func() bool { return true })
			}
			mustSync(t, k, p, Full)
			if has := strings.Contains(first, large.Name.String()); has == parts {
				t.Errorf("the large Service is in the first batch: %t, want %t", has, !parts)
			}
			checkKernel(t, k, p)
		})
	}
}

// TestAFlushBetweenPartsIsRepaired: if a table is deleted between two batches of a repair, the sync fails, and the next one repairs the tables.
func TestAFlushBetweenPartsIsRepaired(t *testing.T) {
	k, p := synced(t)
	large := wide(inet.IPv4, 1000, 500, 1)
	p.Set(large.Name, large)
	mustSync(t, k, p, Partial)
	k.atOnce, k.counts = 100, &afterRewrite{do: func() { run(t, "nft", "delete table ip kube-nftproxy") }}
	run(t, "nft", "flush ruleset")
	k.Doubt()
	if _, err := k.Sync(p); err == nil {
		t.Error("no part failed")
	}
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
}

// uncounted are [Counts] of nothing.
type uncounted struct{}

func (uncounted) Await(time.Duration) error { return nil }
func (uncounted) Begin()                    {}
func (uncounted) End([]nft.Found, bool)     {}
func (uncounted) Adopted()                  {}

// afterRewrite calls a function once, after the first batch of a rewrite.
type afterRewrite struct {
	uncounted
	do func()
}

func (c *afterRewrite) End(_ []nft.Found, all bool) {
	if do := c.do; all && do != nil {
		c.do = nil
		do()
	}
}

func TestAComparisonFindsForeignChanges(t *testing.T) {
	for name, c := range map[string]struct {
		command, why string
		counted      bool // found by the number of elements, which kernels before 6.16 do not report
	}{
		"nothing":        {"list tables", "", false},
		"flush":          {"flush ruleset", "there is no table", false},
		"element":        {"delete element ip kube-nftproxy cluster-ips { 10.96.0.2 }", "set cluster-ips has", true},
		"extra rule":     {"add rule ip kube-nftproxy services accept", "the rules of chain services", false},
		"flushed chain":  {"flush chain ip6 kube-nftproxy postrouting", "the rules of chain postrouting", false},
		"extra chain":    {"add chain ip kube-nftproxy foreign", "chain foreign is an unknown chain", false},
		"extra set":      {"add set ip kube-nftproxy foreign { type ipv4_addr; }", "set foreign is an unknown set", false},
		"state":          {"flush set ip kube-nftproxy state", "its element state is missing", false},
		"other table":    {"add table ip foreign", "", false},
		"missing chain":  {"flush chain ip kube-nftproxy output && delete chain ip kube-nftproxy output", "chain output is missing", false},
		"flushed a map":  {"flush map ip kube-nftproxy dispatch-pick", "set dispatch-pick has", true},
		"remembered one": {"add element ip kube-nftproxy affinity { d47c:0 . 192.0.2.1 : d47c:1 }", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			k, p := synced(t)
			for _, command := range strings.Split(c.command, " && ") {
				run(t, "nft", command)
			}
			k.Doubt()
			r, err := k.Sync(p)
			lab.Must(t, err)
			if c.counted && r.Kind == Adopted && !countsElements(t, k) {
				return
			}
			if (c.why == "") != (r.Kind == Adopted) || !strings.Contains(r.Why, c.why) {
				t.Errorf("sync was %s because %q, want a reason with %q", r.Kind, r.Why, c.why)
			}
			checkKernel(t, k, p)
		})
	}
}

// countsElements reports whether the kernel reports the number of a set's elements.
func countsElements(t testing.TB, k *Kernel) bool {
	t.Helper()
	sets, err := k.conn.Sets(inet.IPv4, plan.TableName)
	if err != nil || len(sets) == 0 {
		t.Fatalf("list sets: %v", err)
	}
	return sets[0].Count >= 0
}

func TestForeignCommitsAreNoticed(t *testing.T) {
	k, p := synced(t)
	expect := func(when string, want bool) {
		t.Helper()
		if got, err := k.CheckRuleset(); err != nil || got != want {
			t.Errorf("%s: CheckRuleset() = %v, %v, want %v", when, got, err, want)
		}
	}
	expect("after a full sync", false)
	s := everything(2, 3, 0, false)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	expect("after a partial sync", false)
	run(t, "nft", "add table ip foreign")
	expect("after a foreign commit", true)
	k.Doubt()
	mustSync(t, k, p, Adopted)
	expect("after a comparison", false)
	run(t, "nft", "flush ruleset")
	s = everything(2, 4, 0, false)
	p.Set(s.Name, s)
	if _, err := k.Sync(p); err == nil {
		t.Error("a partial sync without tables succeeded")
	}
	mustSync(t, k, p, Full)
	expect("after a repair", false)
	run(t, "nft", "add table ip6 foreign")
	s = everything(2, 2, 0, false)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	expect("after a partial sync that followed a foreign commit", true)
}

// TestAnElementThatLeadsToAnotherClassIsRepaired: a foreign change makes an element lead to the chain of another class. The comparison does not mistake
// it for an element that an earlier process retained.
func TestAnElementThatLeadsToAnotherClassIsRepaired(t *testing.T) {
	k, p := synced(t)
	var lead string
	p.Elements(func(e *nft.Element) {
		if e.Set.Family == inet.IPv4 && e.Set.Name == "dispatch" && strings.Contains(e.Chain, "for-10800") {
			lead = strings.TrimPrefix(e.String(), "ip dispatch ")
		}
	})
	other := strings.Replace(lead, "for-10800", "for-3600", 1)
	if other == lead {
		t.Fatalf("no element leads to affinity-for-10800: %q", lead)
	}
	_, chain, _ := strings.Cut(other, "goto ")
	const in = " element ip kube-nftproxy dispatch "
	run(t, "nft", "add chain ip kube-nftproxy "+strings.TrimSuffix(chain, " }")+"; delete"+in+lead+"; add"+in+other)
	k.Doubt()
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

func TestRememberedClientsSurviveARewrite(t *testing.T) {
	k, p := synced(t)
	run(t, "nft", "add element ip kube-nftproxy affinity { d47c:0 . 192.0.2.1 timeout 1h : d47c:1 }")
	run(t, "nft", "flush chain ip kube-nftproxy services")
	k.Doubt()
	mustSync(t, k, p, Full)
	lab.Contains(t, run(t, "nft", "list map ip kube-nftproxy affinity"), "map affinity", "192.0.2.1")
}

func TestLocalPodsAreRecognisedInAnotherWay(t *testing.T) {
	k, p := synced(t)
	run(t, "nft", "add element ip kube-nftproxy affinity { d47c:0 . 192.0.2.1 timeout 1h : d47c:1 }")
	pods := plan.LocalPods{Prefix: netip.MustParsePrefix("10.200.0.0/24")}
	p.Rules().SetLocalPods(inet.IPv4, pods)
	mustSync(t, k, p, Full)
	if got := run(t, "nft", "list table ip kube-nftproxy"); strings.Contains(got, "10.244.0.0/") || !strings.Contains(got, "10.200.0.0/24") {
		t.Errorf("the rules recognise other pods:\n%s", got)
	}
	lab.Contains(t, run(t, "nft", "list map ip kube-nftproxy affinity"), "map affinity", "192.0.2.1")
	p.Rules().SetLocalPods(inet.IPv4, pods)
	mustSync(t, k, p, Nothing)
	o := options()
	o.LocalPods[inet.IPv4] = pods
	other := open(t)
	again := resume(t, other, o, services())
	cluster(again)
	mustSync(t, other, again, Adopted)
}

func TestFailedBatchChangesNothing(t *testing.T) {
	k, p := synced(t)
	before := inKernel(t, k, p)
	run(t, "nft", "add element ip kube-nftproxy cluster-ips { 10.96.0.200 }")
	run(t, "nft", "add element ip6 kube-nftproxy cluster-ips { fd00:10:96::c8 }")
	s := everything(200, 3, 0, true)
	p.Set(s.Name, s)
	if r, err := k.Sync(p); err == nil {
		t.Fatalf("sync %s, want an error: the element exists already", r.Kind)
	} else if !strings.Contains(err.Error(), "cluster-ips") {
		t.Errorf("error %q does not name the set", err)
	}
	run(t, "nft", "delete element ip kube-nftproxy cluster-ips { 10.96.0.200 }")
	run(t, "nft", "delete element ip6 kube-nftproxy cluster-ips { fd00:10:96::c8 }")
	lab.Same(t, before, inKernel(t, k, p), "elements (-before +after the failed batch)")
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
}

func TestCleanupDeletesOnlyTablesOfThisProgram(t *testing.T) {
	synced(t)
	run(t, "nft", "add table ip foreign; add table ip kube-proxy; add table ip6 kube-proxy")
	for _, want := range [][]string{{"ip kube-nftproxy", "ip6 kube-nftproxy"}, nil} {
		deleted, err := Cleanup("")
		lab.Must(t, err)
		lab.Same(t, want, deleted, "deleted tables")
	}
	if got := run(t, "nft", "list tables"); got != "table ip foreign\ntable ip kube-proxy\ntable ip6 kube-proxy\n" {
		t.Errorf("tables left: %q", got)
	}
}

func TestADeletedServiceLeavesNothing(t *testing.T) {
	k, p := synced(t)
	before := inKernel(t, k, p)
	s := everything(300, 7, 0, true)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	p.Set(types.NamespacedName{Namespace: "default", Name: "svc-300"}, nil)
	mustSync(t, k, p, Partial)
	for retains(k) {
		retireNow(k)
		mustSync(t, k, p, Partial)
	}
	lab.Same(t, before, inKernel(t, k, p), "elements (-before +after a Service was added and deleted)")
	if got := run(t, "nft", "list chains"); strings.Contains(got, "local-endpoints-of-4") {
		t.Errorf("chains of the deleted Service are left:\n%s", got)
	}
}
