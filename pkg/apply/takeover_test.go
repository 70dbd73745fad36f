package apply

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// addRival adds tables like those of kube-proxy, with a map that leads to a chain.
func addRival(t *testing.T) {
	t.Helper()
	for _, family := range []string{"ip", "ip6"} {
		run(t, "nft", "add table "+family+" kube-proxy; add chain "+family+" kube-proxy a; add chain "+family+
			" kube-proxy prerouting { type nat hook prerouting priority dstnat; }; add map "+family+
			" kube-proxy m { type inet_proto . inet_service : verdict; elements = { tcp . 80 : goto a }; }; add rule "+family+
			" kube-proxy prerouting meta l4proto . th dport vmap @m")
	}
}

func alone() bool { return true }

func hasRival(t *testing.T) bool {
	t.Helper()
	return strings.Contains(run(t, "nft", "list tables"), "kube-proxy\n")
}

func TestKubeProxysTablesAreReplacedInOneBatch(t *testing.T) {
	for name, before := range map[string]func(*testing.T, *plan.Planner){
		"first start": func(*testing.T, *plan.Planner) {},
		"tables exist": func(t *testing.T, p *plan.Planner) {
			mustSync(t, open(t), p, Full)
		},
	} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			p := plan.New(options())
			cluster(p)
			before(t, p)
			addRival(t)
			k := open(t)
			k.TakeOver(alone)
			generation, err := k.conn.Generation()
			lab.Must(t, err)
			mustSync(t, k, p, Full)
			if hasRival(t) {
				t.Error("kube-proxy's tables still exist")
			}
			if now, err := k.conn.Generation(); err != nil || now != generation+1 {
				t.Errorf("%d batches, want 1 (%v)", now-generation, err)
			}
			checkKernel(t, k, p)
		})
	}
}

// TestLaterTablesOfKubeProxyStay: a running kube-proxy writes its tables after the first sync. The program does not delete them.
func TestLaterTablesOfKubeProxyStay(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	cluster(p)
	k.TakeOver(alone)
	mustSync(t, k, p, Full)
	addRival(t)
	k.Doubt()
	mustSync(t, k, p, Adopted)
	run(t, "nft", "flush chain ip kube-nftproxy services")
	k.Doubt()
	if mustSync(t, k, p, Full); !hasRival(t) {
		t.Error("kube-proxy's tables were deleted")
	}
}

// TestTablesOfKubeProxyStayWithoutTakeOver: without a call of TakeOver, kube-proxy's tables stay.
func TestTablesOfKubeProxyStayWithoutTakeOver(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	cluster(p)
	addRival(t)
	if mustSync(t, k, p, Full); !hasRival(t) {
		t.Error("kube-proxy's tables were deleted")
	}
}

// TestAKubeProxyThatStartsBeforeTheFirstSyncKeepsItsTables: a kube-proxy starts while this program waits, plans, or builds its batch. Its tables stay.
func TestAKubeProxyThatStartsBeforeTheFirstSyncKeepsItsTables(t *testing.T) {
	for name, c := range map[string]struct {
		// runs is the number of the first query that finds a kube-proxy. cancelled is true if another check has found it.
		runs      int
		cancelled bool
	}{
		"before the tables are compared": {runs: 1},
		"while the batch is made":        {runs: 2},
		"another check has found it":     {runs: 100, cancelled: true},
	} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			k, p := open(t), plan.New(options())
			cluster(p)
			addRival(t)
			asked := 0
			k.TakeOver(func() bool { asked++; return asked < c.runs })
			if c.cancelled {
				k.KeepKubeProxy()
			}
			if mustSync(t, k, p, Full); !hasRival(t) {
				t.Errorf("kube-proxy's tables were deleted after %d queries for a kube-proxy", asked)
			}
			checkKernel(t, k, p)
			k.Doubt()
			if mustSync(t, k, p, Adopted); !hasRival(t) {
				t.Error("the next sync deleted kube-proxy's tables")
			}
		})
	}
}

// TestATableOfKubeProxyThatHasAnOwnerStays: if kube-proxy's table has an owner, which alone may delete it, the first sync fails. The next sync succeeds
// and leaves the table.
func TestATableOfKubeProxyThatHasAnOwnerStays(t *testing.T) {
	lab.EnterNamespace(t)
	k := open(t)
	defer own(t, "table ip "+KubeProxyTable+" { flags owner; }", KubeProxyTable)()
	p := plan.New(options())
	cluster(p)
	k.TakeOver(alone)
	if _, err := k.Sync(p); !errors.Is(err, unix.EPERM) || strings.Contains(err.Error(), "\x00") {
		t.Errorf("Sync() = %v, want %v", err, unix.EPERM)
	}
	if mustSync(t, k, p, Full); !hasRival(t) {
		t.Error("kube-proxy's table was deleted")
	}
	checkKernel(t, k, p)
}

// own makes another program replace an IPv4 table with a table that it owns. After release, the kernel deletes the table.
func own(t *testing.T, definition, name string) (release func()) {
	t.Helper()
	owner := exec.Command("nft", "--interactive")
	commands, err := owner.StdinPipe()
	lab.Must(t, err)
	lab.Must(t, owner.Start())
	release = sync.OnceFunc(func() {
		_ = commands.Close()
		_ = owner.Wait() // the status of the last command does not matter
	})
	t.Cleanup(release)
	if _, err := fmt.Fprintf(commands, "add table ip %[1]s; delete table ip %[1]s; %[2]s\n", name, strings.ReplaceAll(definition, "\n", ";")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return strings.Contains(run(t, "nft", "list tables ip; list ruleset ip"), "flags owner") })
	return release
}
