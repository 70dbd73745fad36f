package apply

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// lockable returns a planner of tables that are to be locked, and a kernel. It ends the test where the kernel can't lock tables, and
// says so.
func lockable(t *testing.T) (*Kernel, *plan.Planner) {
	t.Helper()
	lab.EnterNamespace(t)
	k := open(t)
	can, err := k.CanLock()
	if err != nil {
		t.Fatal(err)
	}
	if exists, err := k.conn.HasTable(nft.IPv4, plan.TableName+"-probe"); exists || err != nil {
		t.Fatalf("the question has left a table (%t, %v)", exists, err)
	}
	if !can {
		if mustLock(t) {
			t.Fatal("this kernel can't lock tables, though it is 6.9 or newer")
		}
		t.Skip("kernels before 6.9 can't lock tables")
	}
	return k, locked(true)
}

// mustLock reports whether the kernel is one that can lock tables.
func mustLock(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 9
}

func locked(lock bool) *plan.Planner {
	p := plan.New(lockedOptions(lock))
	cluster(p)
	return p
}

func lockedOptions(lock bool) plan.Options {
	o := options()
	o.LockTables = lock
	return o
}

// refusedToOthers is that another program may neither change nor delete the tables.
func refusedToOthers(t *testing.T, want bool) {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, f := range model.Families {
		b := nft.NewBatch(0)
		b.AddChain(&nft.Table{Family: plan.NFT(f), Name: plan.TableName}, &nft.Chain{Name: "foreign"})
		b.DeleteChain(&nft.Table{Family: plan.NFT(f), Name: plan.TableName}, "foreign")
		if err := conn.Commit(b); errors.Is(err, unix.EPERM) != want || !want && err != nil {
			t.Errorf("%s: adding a chain: %v; to be refused: %t", f, err, want)
		}
	}
}

func TestLockedTablesAreOurs(t *testing.T) {
	k, p := lockable(t)
	sync(t, k, p, Full)
	refusedToOthers(t, true)
	if _, err := Cleanup(); !errors.Is(err, errLocked) {
		t.Errorf("another process deletes them: %v", err)
	}
	run(t, "nft", "flush", "ruleset")
	checkKernel(t, k, p)
	s := everything(1, 4, 0, false)
	p.Set(s.Name, s)
	sync(t, k, p, Partial)
	if err := k.Renew(p); err != nil {
		t.Error(err)
	}
	refusedToOthers(t, true)
	p.SetLocalPods(model.IPv4, plan.LocalPods{Prefix: netip.MustParsePrefix("10.9.0.0/16")})
	sync(t, k, p, Full)
	refusedToOthers(t, true)
	checkKernel(t, k, p)
}

func TestWhoComesNextLocksTheTables(t *testing.T) {
	k, p := lockable(t)
	sync(t, k, p, Full)
	next, again := open(t), locked(true)
	if _, err := next.Sync(again); !errors.Is(err, errLocked) || !errors.Is(err, unix.EPERM) {
		t.Errorf("while the first one runs: %v", err)
	}
	if _, err := open(t).Sync(locked(false)); !errors.Is(err, errLocked) {
		t.Errorf("while the first one runs, to make them anew: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	refusedToOthers(t, false)
	again = resume(t, next, lockedOptions(true), services())
	cluster(again)
	sync(t, next, again, Adopted)
	refusedToOthers(t, true)
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	k = open(t)
	p = resume(t, k, lockedOptions(true), services())
	cluster(p)
	sync(t, k, p, Adopted)
	refusedToOthers(t, true)
	checkKernel(t, k, p)
	s := everything(1, 4, 0, false)
	p.Set(s.Name, s)
	sync(t, k, p, Partial)
}

func TestTheLockIsTakenAgainWithAnotherSocket(t *testing.T) {
	k, p := lockable(t)
	sync(t, k, p, Full)
	if err := k.conn.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if k.conn, err = nft.Open(); err != nil {
		t.Fatal(err)
	}
	refusedToOthers(t, false)
	if _, err := k.Sync(p); err != nil {
		t.Fatal(err)
	}
	if err := k.Renew(p); err != nil {
		t.Fatal(err)
	}
	refusedToOthers(t, true)
}

func TestTablesAreMadeAnewToBeLockedOrNot(t *testing.T) {
	for _, first := range []bool{false, true} {
		k, _ := lockable(t)
		sync(t, k, locked(first), Full)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		k, p := open(t), locked(!first)
		sync(t, k, p, Full)
		checkKernel(t, k, p)
		refusedToOthers(t, !first)
	}
}
