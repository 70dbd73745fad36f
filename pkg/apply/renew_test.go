package apply

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// leaseLasts reports whether the lease of a family has all its elements.
func leaseLasts(t *testing.T, family string) bool {
	t.Helper()
	return strings.Count(run(t, "nft", "list set "+family+" kube-nftproxy lease"), "expires") == 3
}

// TestTheLeaseIsRenewedBeforeTheFirstSync: a process renews the lease of an earlier process's tables before its first
// sync, and then adopts the tables.
func TestTheLeaseIsRenewedBeforeTheFirstSync(t *testing.T) {
	lab.EnterNamespace(t)
	first, p := open(t), plan.New(options())
	cluster(p)
	mustSync(t, first, p, Full)
	run(t, "nft", "flush set ip kube-nftproxy lease; flush set ip6 kube-nftproxy lease")
	if leaseLasts(t, "ip") || leaseLasts(t, "ip6") {
		t.Fatal("the lease has not expired")
	}
	k := open(t)
	p = plan.New(options())
	lab.Must(t, k.Renew(p, 0))
	if !leaseLasts(t, "ip") || !leaseLasts(t, "ip6") {
		t.Error("the lease of an earlier process's tables is not renewed")
	}
	if k.Leased().IsZero() {
		t.Error("Leased() is zero after a renewal")
	}
	lab.Must(t, k.Recall(p, nil))
	lab.Must(t, k.Recall(p, services()))
	lab.Must(t, k.Renew(p, 0))
	cluster(p)
	mustSync(t, k, p, Adopted)
	if changed, err := k.CheckRuleset(); changed || err != nil {
		t.Errorf("CheckRuleset() = %t, %v", changed, err)
	}
}

// TestRenewalsAreNotForeign: renewals cause no comparison and no full sync.
func TestRenewalsAreNotForeign(t *testing.T) {
	for name, listens := range map[string]bool{"with a listener": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			k, p := synced(t)
			if listens {
				listen(t, k)
			}
			for i := range 20 {
				s := everything(20+i%4, 1+i%3, 0, false)
				p.Set(s.Name, s)
				lab.Must(t, k.Renew(p, 0))
				mustSync(t, k, p, Partial)
				lab.Must(t, k.Renew(p, 0))
				lab.Must(t, k.Renew(p, 0))
				if changed, err := k.CheckRuleset(); changed || err != nil {
					t.Fatalf("CheckRuleset() = %t, %v after renewals", changed, err)
				}
				mustSync(t, k, p, Nothing)
			}
			if _, missed := k.others.take(); missed || k.check.due || k.check.answer != nil {
				t.Error("renewals count as unheard")
			}
			if n := len(k.Heard()); n > 0 || k.Author().Program != "" {
				t.Errorf("%d commits heard, by %s", n, k.Author())
			}
			checkKernel(t, k, p)
			// Foreign commits between renewals are noticed.
			run(t, "nft", "add table ip foreign")
			lab.Must(t, k.Renew(p, 0))
			if changed, err := k.CheckRuleset(); !changed || err != nil {
				t.Errorf("CheckRuleset() = %t, %v after nft has made a table", changed, err)
			}
			run(t, "nft", "flush chain ip kube-nftproxy services")
			if listens {
				eventually(t, func() bool { return k.Touched() != "" })
			}
			k.Doubt()
			lab.Must(t, k.Renew(p, 0))
			mustSync(t, k, p, Full)
		})
	}
}

// TestOnlyExistingLeasesAreRenewed: a renewal neither adds a missing table nor fails because of it. It does not change a lease of another form.
func TestOnlyExistingLeasesAreRenewed(t *testing.T) {
	k, p := synced(t)
	before := k.Leased()
	run(t, "nft", "delete table ip kube-nftproxy; delete table ip6 kube-nftproxy; "+
		"add table ip6 kube-nftproxy; add set ip6 kube-nftproxy lease { type inet_proto; timeout 1s; }")
	if err := k.Renew(p, 0); err != nil {
		t.Error(err)
	}
	if !k.Leased().Equal(before) {
		t.Error("a renewal of no lease counts")
	}
	if tables := run(t, "nft", "list ruleset"); strings.Contains(tables, "expires") || strings.Contains(tables, "table ip ") {
		t.Errorf("a renewal has changed tables of another form:\n%s", tables)
	}
}

// TestAnyProcessSeesTheLease: a process reads the time of the last renewal by another process, whether the tables exist
// or not.
func TestAnyProcessSeesTheLease(t *testing.T) {
	k, p := synced(t)
	lab.Must(t, k.Renew(p, plan.LeaseAtExit))
	shortened := time.Now().Add(plan.LeaseAtExit - plan.Lease)
	near := func(when string, want time.Time) {
		t.Helper()
		if apart := k.LeasedByAny(p).Sub(want).Abs(); apart > time.Second {
			t.Errorf("%s, the time of the last renewal is wrong by %v", when, apart)
		}
	}
	near("after an exit", shortened)
	before := k.Leased()
	lab.Must(t, open(t).Renew(p, 0))
	near("after a renewal by another process", time.Now())
	if !k.Leased().Equal(before) {
		t.Error("the renewal by another process counts as one of this process")
	}
	run(t, "nft", "flush ruleset")
	if last := k.LeasedByAny(p); !last.IsZero() {
		t.Errorf("without tables, the last renewal was at %v", last)
	}
}

// TestRulesServeIfAllFamiliesAreLeased: a process adopts rules that served just before only if no family's table is
// missing, and no lease has expired.
func TestRulesServeIfAllFamiliesAreLeased(t *testing.T) {
	for change, want := range map[string]bool{
		"list tables": true, "flush set ip kube-nftproxy lease": false, "flush set ip6 kube-nftproxy lease": false,
		"delete table ip6 kube-nftproxy": false, "flush ruleset": false,
	} {
		t.Run(change, func(t *testing.T) {
			k, p := synced(t)
			run(t, "nft", change)
			lab.Same(t, want, k.IsLeased(p), "leased")
		})
	}
}

// TestARefusedRenewal: while another program owns the table, a renewal fails, and the next one after that succeeds.
func TestARefusedRenewal(t *testing.T) {
	k, p := synced(t)
	run(t, "nft", "flush set ip kube-nftproxy lease; delete table ip6 kube-nftproxy")
	lease := run(t, "nft", "list set ip kube-nftproxy lease")
	release := own(t, strings.Replace(lease, "{", "{ flags owner;", 1), "kube-nftproxy")
	if err := k.Renew(p, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("failed with %v, want %v", err, unix.EPERM)
	}
	release()
	k.Doubt()
	mustSync(t, k, p, Full)
	lab.Must(t, k.Renew(p, 0))
	if !leaseLasts(t, "ip") || !leaseLasts(t, "ip6") {
		t.Error("the lease is not renewed")
	}
}
