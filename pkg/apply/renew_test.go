package apply

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// startRenewal starts the renewal of the lease beside a Kernel. It returns a function that counts renewals, the number of attempts, and the reported
// failures.
func startRenewal(t *testing.T, k *Kernel, p *plan.Planner) (count func() uint32, attempts *atomic.Int32, failures chan error) {
	t.Helper()
	l, err := k.Lease(p)
	lab.Must(t, err)
	failures = make(chan error, 100)
	attempts = &atomic.Int32{}
	l.every, l.Failed = 5*time.Millisecond, func(err error) { failures <- err }
	l.May = func() bool { attempts.Add(1); return true }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return func() uint32 {
		k.renewals.mu.Lock()
		defer k.renewals.mu.Unlock()
		return k.renewals.count
	}, attempts, failures
}

// renewOnce renews the lease.
func renewOnce(t *testing.T, k *Kernel, p *plan.Planner) {
	t.Helper()
	l, err := k.Lease(p)
	lab.Must(t, err)
	defer l.conn.Close() //nolint:errcheck // nothing is lost
	lab.Must(t, l.set(0))
}

// leaseLasts reports whether the lease of a family has all its elements.
func leaseLasts(t *testing.T, family string) bool {
	t.Helper()
	return strings.Count(run(t, "nft", "list set "+family+" kube-nftproxy lease"), "expires") == 3
}

// TestTheLeaseIsRenewedWithoutTheLoop: a process renews the lease of an earlier process's tables before its first sync.
func TestTheLeaseIsRenewedWithoutTheLoop(t *testing.T) {
	lab.EnterNamespace(t)
	first, p := open(t), plan.New(options())
	cluster(p)
	mustSync(t, first, p, Full)
	run(t, "nft", "flush set ip kube-nftproxy lease; flush set ip6 kube-nftproxy lease")
	if leaseLasts(t, "ip") || leaseLasts(t, "ip6") {
		t.Fatal("the lease has not expired")
	}
	k := open(t)
	p = resume(t, k, options(), services())
	cluster(p)
	count, _, failures := startRenewal(t, k, p)
	eventually(t, func() bool { return count() > 0 })
	if !leaseLasts(t, "ip") || !leaseLasts(t, "ip6") {
		t.Error("the lease of an earlier process's tables is not renewed")
	}
	if k.Leased().IsZero() {
		t.Error("Leased() is zero after a renewal")
	}
	mustSync(t, k, p, Adopted)
	if n := len(failures); n > 0 {
		t.Errorf("%d failures, the first: %v", n, <-failures)
	}
}

// TestRenewalsAreNotForeign: renewals cause no comparison and no full sync.
func TestRenewalsAreNotForeign(t *testing.T) {
	for name, listens := range map[string]bool{"with a listener": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			k, p := synced(t)
			if listens {
				lab.Must(t, k.Listen())
			}
			count, _, _ := startRenewal(t, k, p)
			for i := range 20 {
				before := count()
				s := everything(20+i%4, 1+i%3, 0, false)
				p.Set(s.Name, s)
				mustSync(t, k, p, Partial)
				eventually(t, func() bool { return count() > before+1 })
				if changed, err := k.CheckRuleset(); changed || err != nil {
					t.Fatalf("CheckRuleset() = %t, %v after renewals", changed, err)
				}
				mustSync(t, k, p, Nothing)
			}
			if k.others.takeMissed() {
				t.Error("renewals count as unheard")
			}
			if n := len(k.Heard()); n > 0 || k.Author().Program != "" {
				t.Errorf("%d commits heard, by %s", n, k.Author())
			}
			checkKernel(t, k, p)
			// Foreign commits between renewals are noticed.
			run(t, "nft", "add table ip foreign")
			if changed, err := k.CheckRuleset(); !changed || err != nil {
				t.Errorf("CheckRuleset() = %t, %v after nft has made a table", changed, err)
			}
			run(t, "nft", "flush chain ip kube-nftproxy services")
			if listens {
				eventually(t, k.Touched)
			}
			k.Doubt()
			mustSync(t, k, p, Full)
		})
	}
}

// TestOnlyExistingLeasesAreRenewed: a renewal neither adds a missing table nor fails because of it. It does not change a lease of another form.
func TestOnlyExistingLeasesAreRenewed(t *testing.T) {
	k, p := synced(t)
	l, err := k.Lease(p)
	lab.Must(t, err)
	defer l.conn.Close() //nolint:errcheck // nothing is lost
	run(t, "nft", "delete table ip kube-nftproxy; delete table ip6 kube-nftproxy; "+
		"add table ip6 kube-nftproxy; add set ip6 kube-nftproxy lease { type inet_proto; timeout 1s; }")
	if err := l.set(0); err != nil {
		t.Error(err)
	}
	if count := k.renewals.count; count != 0 {
		t.Errorf("%d renewals, want none", count)
	}
	if tables := run(t, "nft", "list ruleset"); strings.Contains(tables, "expires") || strings.Contains(tables, "table ip ") {
		t.Errorf("a renewal has changed tables of another form:\n%s", tables)
	}
}

// TestAnAbandonedLeaseIsNoticed: a process that does not serve notices that no other process renews the lease, whether
// the tables exist or not.
func TestAnAbandonedLeaseIsNoticed(t *testing.T) {
	k, p := synced(t)
	serving, stop := context.WithCancel(t.Context())
	renewing, err := open(t).Lease(p)
	lab.Must(t, err)
	renewing.every = 5 * time.Millisecond
	go renewing.Run(serving)
	waiting, err := k.Lease(p)
	lab.Must(t, err)
	looks, abandoned := atomic.Int32{}, make(chan struct{}, 100)
	begun := time.Now()
	waiting.every, waiting.abandoned = 5*time.Millisecond, time.Second
	waiting.Abandoned = func() { abandoned <- struct{}{} }
	waiting.May = func() bool { looks.Add(1); return false }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); waiting.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, func() bool { return looks.Load() > 100 && time.Since(begun) > 2*waiting.abandoned })
	if len(abandoned) > 0 {
		t.Error("the lease counts as abandoned while another process renews it")
	}
	stop()
	<-abandoned
	run(t, "nft", "flush ruleset")
	<-abandoned
	if count := k.renewals.count; count != 0 {
		t.Errorf("a process that does not serve has renewed the lease %d times", count)
	}
}

// TestAFailingRenewalIsReportedOnceAndRetried: while another program owns the table, renewals fail. The lease reports only the first failure, and
// retries the renewal until it succeeds.
func TestAFailingRenewalIsReportedOnceAndRetried(t *testing.T) {
	k, p := synced(t)
	run(t, "nft", "flush set ip kube-nftproxy lease; delete table ip6 kube-nftproxy")
	lease := run(t, "nft", "list set ip kube-nftproxy lease")
	release := own(t, strings.Replace(lease, "{", "{ flags owner;", 1), "kube-nftproxy")
	count, attempts, failures := startRenewal(t, k, p)
	if err := <-failures; !errors.Is(err, unix.EPERM) {
		t.Errorf("failed with %v, want %v", err, unix.EPERM)
	}
	eventually(t, func() bool { return attempts.Load() > 10 })
	if n := len(failures); n > 0 {
		t.Errorf("%d more failures were reported", n)
	}
	release()
	k.Doubt()
	mustSync(t, k, p, Full)
	eventually(t, func() bool { return count() > 0 })
}
