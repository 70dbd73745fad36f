package takeover

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// enter creates a network namespace with a loopback interface.
func enter(t *testing.T) {
	t.Helper()
	lab.EnterNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	lab.Must(t, err)
}

// listen serves a handler on an address of the namespace, until the server is closed.
func listen(t *testing.T, at string, h http.Handler) *http.Server {
	t.Helper()
	l, err := net.Listen("tcp", at)
	lab.Must(t, err)
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return s
}

// pages returns a handler of the given pages, like kube-proxy's.
func pages(list map[string]string) http.Handler {
	mux := http.NewServeMux()
	for path, body := range list {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
	}
	return mux
}

const healthy = `{"lastUpdated": "2026-01-02 03:04:05 +0000 UTC","currentTime": "2026-01-02 03:04:05 +0000 UTC", "nodeEligible": true}`

func TestFindRival(t *testing.T) {
	for _, tc := range []struct {
		name, at        string
		pages           map[string]string
		named           bool
		metrics, health string
		want            string
	}{
		{name: "no server"},
		{name: "kube-proxy", at: "127.0.0.1:10249", pages: map[string]string{"/proxyMode": "iptables"}, want: "http://127.0.0.1:10249/proxyMode"},
		{name: "on the configured port", at: "127.0.0.1:9999", pages: map[string]string{"/proxyMode": "ipvs\n"}, metrics: "0.0.0.0:9999",
			want: "http://127.0.0.1:9999/proxyMode"},
		{name: "on IPv6", at: "[::1]:9999", pages: map[string]string{"/proxyMode": "nftables"}, metrics: "[::]:9999",
			want: "http://[::1]:9999/proxyMode"},
		{name: "a kube-proxy without metrics", at: "127.0.0.1:10256", pages: map[string]string{"/healthz": healthy}, health: "0.0.0.0:10256",
			want: "http://127.0.0.1:10256/healthz"},
		{name: "this program's metrics", at: "127.0.0.1:10249", pages: map[string]string{"/proxyMode": "nftables", "/healthz": healthy}, named: true},
		{name: "this program's health", at: "127.0.0.1:10256", pages: map[string]string{"/healthz": healthy}, named: true},
		{name: "another program", at: "127.0.0.1:10249", pages: map[string]string{"/": "hello", "/proxyMode": "no such page"}},
		{name: "another program's health", at: "127.0.0.1:10256", pages: map[string]string{"/healthz": "ok"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			enter(t)
			if tc.at != "" {
				h := pages(tc.pages)
				if tc.named {
					h = Named(h)
				}
				listen(t, tc.at, h)
			}
			if got := FindRival(t.Context(), tc.metrics, tc.health); got.Page != tc.want || got.Unknown != nil {
				t.Errorf("found %+v, want %q", got, tc.want)
			}
		})
	}
}

// bench is a takeover whose checks the test makes one by one.
type bench struct {
	*Takeover
	ctx      context.Context
	problems []model.Problem
	counts   map[Kind]int
}

func newBench(t *testing.T) *bench {
	b := &bench{counts: map[Kind]int{}}
	logger := ktesting.NewLogger(t, ktesting.NewConfig())
	b.ctx = klog.NewContext(t.Context(), logger)
	b.Takeover = New(Config{
		NodeName: "node-1", Metrics: "127.0.0.1:10249", Health: "0.0.0.0:10256",
		Report: func(p model.Problem) { b.problems = append(b.problems, p) },
		Count:  func(k Kind, n int) { b.counts[k] = n },
	})
	b.note = newNotes(logger)
	return b
}

// check makes two checks of the takeover, and compares the remaining objects and the number of problems since the
// start.
func (b *bench) check(t *testing.T, step string, want Leftovers, problems int) {
	t.Helper()
	for range 2 {
		_ = b.look(b.ctx)
	}
	got := look(t)
	maps.DeleteFunc(got, func(_ Kind, n int) bool { return n == 0 })
	maps.DeleteFunc(b.counts, func(_ Kind, n int) bool { return n == 0 })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: leftovers (-want +got):\n%s", step, diff)
	}
	if diff := cmp.Diff(want, Leftovers(b.counts)); diff != "" {
		t.Errorf("%s: counted (-want +got):\n%s", step, diff)
	}
	if len(b.problems) != problems {
		t.Errorf("%s: %d problems, want %d: %v", step, len(b.problems), problems, b.problems)
	}
}

func TestNothingIsRemovedBeforeTheFirstSync(t *testing.T) {
	enter(t)
	kubeProxy(t, "nft", "iptables")
	chains := look(t)[IPTablesNFT]
	b := newBench(t)
	b.check(t, "before the first sync", Leftovers{IPTablesNFT: chains}, 0)
	b.Synced()
	b.Synced()
	b.check(t, "after the first sync", Leftovers{}, 0)
}

func TestARunningKubeProxyIsLeftAlone(t *testing.T) {
	enter(t)
	tables := func() {
		command(t, "", "nft", "add table ip kube-proxy; add table ip6 kube-proxy; add chain ip kube-proxy a; add rule ip kube-proxy a drop")
	}
	for _, backend := range backends {
		kubeProxy(t, backend, "iptables")
	}
	tables()
	all := look(t)
	maps.DeleteFunc(all, func(_ Kind, n int) bool { return n == 0 })
	if len(all) != 3 {
		t.Fatalf("leftovers %v", all)
	}
	server := listen(t, "127.0.0.1:10249", pages(map[string]string{"/proxyMode": "iptables"}))
	b := newBench(t)
	if !b.Rival(b.ctx).Possible() {
		t.Error("Rival() does not find the kube-proxy")
	}
	b.check(t, "before the first sync", all, 1)
	b.Synced()
	b.check(t, "while a kube-proxy runs", all, 1)
	if p := b.problems[0]; p.Kind != "Node" || p.Name.Name != "node-1" || !strings.Contains(p.Fix, "kubectl label node node-1 service-proxy=kube-nftproxy") {
		t.Errorf("reported: %+v", p)
	}
	server.Close()
	b.check(t, "when it has exited", Leftovers{}, 1)

	// If kube-proxy starts again, the takeover reports it each time, and changes nothing.
	tables()
	b.check(t, "tables of mode nftables", Leftovers{NFTables: 2}, 2)
	kubeProxy(t, "legacy", "iptables")
	b.check(t, "chains beside them", Leftovers{NFTables: 2, IPTablesLegacy: all[IPTablesLegacy]}, 2)
	lab.Must(t, Cleanup(klog.FromContext(b.ctx), nil))
	b.check(t, "after a cleanup", Leftovers{}, 2)
	kubeProxy(t, "nft", "iptables")
	b.check(t, "chains of iptables-nft", Leftovers{IPTablesNFT: all[IPTablesNFT]}, 3)
}

// A kube-proxy that does not answer in time, or cannot be queried, may still run.
func TestAKubeProxyThatMayRunIsLeftAlone(t *testing.T) {
	enter(t)
	command(t, "", "nft", "add table ip kube-proxy; add table ip6 kube-proxy")
	var slow atomic.Bool
	served := pages(map[string]string{"/proxyMode": "iptables"})
	server := listen(t, "127.0.0.1:10249", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			<-r.Context().Done()
			return
		}
		served.ServeHTTP(w, r)
	}))
	b := newBench(t)
	b.Synced()
	both := Leftovers{NFTables: 2}
	b.check(t, "while a kube-proxy runs", both, 1)
	slow.Store(true)
	b.check(t, "while it doesn't answer", both, 1)
	if !newBench(t).Rival(b.ctx).Possible() {
		t.Error("at a start, Rival() ignores a kube-proxy that does not answer")
	}
	server.Close()
	withoutFiles(t, func() { _ = b.look(b.ctx) })
	lab.Same(t, 2, look(t)[NFTables], "tables after a look without file descriptors")
	b.check(t, "when it has exited", Leftovers{}, 1)
}

// withoutFiles runs f while this process cannot open files.
func withoutFiles(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	lab.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	set := func(most uint64) {
		lab.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}))
	}
	set(3)
	defer set(before.Cur)
	f()
}

// A failed removal is retried. But if a kube-proxy starts meanwhile, its objects stay, although it does not answer
// because this program uses its ports.
func TestNoConflictAfterAFailure(t *testing.T) {
	enter(t)
	kubeProxy(t, "nft", "ipvs")
	command(t, "", "nft", "add chain ip filter mine; add rule ip filter mine jump KUBE-IPVS-FILTER") // keeps a chain that uses sets
	b := newBench(t)
	b.Synced()
	left := Leftovers{IPTablesNFT: 1, IPVS: 6}
	b.check(t, "while the removal of a set fails", left, 0)
	command(t, "", "nft", "flush chain ip filter mine")
	b.check(t, "after the cause of the failure is removed", Leftovers{}, 0)

	enter(t)
	kubeProxy(t, "nft", "ipvs")
	command(t, "", "nft", "add chain ip filter mine; add rule ip filter mine jump KUBE-IPVS-FILTER")
	b = newBench(t)
	b.Synced()
	b.check(t, "while the removal of a set fails", left, 0)
	kubeProxy(t, "legacy", "iptables")
	chains := look(t)[IPTablesLegacy]
	b.check(t, "when a kube-proxy has started", Leftovers{IPTablesNFT: 1, IPVS: 6, IPTablesLegacy: chains}, 1)

	// If a kube-proxy has answered before, a missing answer means that it has exited.
	b = newBench(t)
	server := listen(t, "127.0.0.1:10249", pages(map[string]string{"/proxyMode": "iptables"}))
	b.Synced()
	b.check(t, "while a kube-proxy answers", Leftovers{IPTablesNFT: 1, IPVS: 6, IPTablesLegacy: chains}, 1)
	server.Close()
	b.check(t, "when it has exited", left, 1)
	server = listen(t, "127.0.0.1:10249", pages(map[string]string{"/proxyMode": "iptables"}))
	kubeProxy(t, "legacy", "iptables")
	b.check(t, "while another one answers", Leftovers{IPTablesNFT: 1, IPVS: 6, IPTablesLegacy: chains}, 2)
	server.Close()
	b.check(t, "when that one has exited, too", left, 2)
}

// A chain that stays because another rule refers to it does not count as a new object.
func TestAChainThatStaysIsNoKubeProxy(t *testing.T) {
	enter(t)
	kubeProxy(t, "nft", "iptables")
	command(t, "", "nft", "add chain ip nat mine; add rule ip nat mine jump KUBE-EXT-CDGGSHYLG3RE2FKL")
	b := newBench(t)
	b.Synced()
	// The rule jumps to the Service's chain, which jumps to the chains of its endpoints, which jump to KUBE-MARK-MASQ.
	left := Leftovers{IPTablesNFT: 5}
	b.check(t, "after the take-over", left, 0)
	command(t, "", "nft", "flush chain ip nat mine")
	b.check(t, "after the other rule is deleted", left, 0)
}

// A kubelet before 1.28 creates two of kube-proxy's chains, and restores them after a deletion.
func TestAKubeletIsNoKubeProxy(t *testing.T) {
	enter(t)
	kubeProxy(t, "nft", "iptables")
	b := newBench(t)
	b.Synced()
	b.check(t, "after the take-over", Leftovers{}, 0)
	for _, backend := range backends {
		for _, c := range commands {
			backend.run(t, "*nat\n:KUBE-MARK-MASQ -\n:KUBE-POSTROUTING -\n-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" "+
				"-j KUBE-POSTROUTING\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\nCOMMIT\n", c+"-restore", "-n")
		}
	}
	b.check(t, "after a kubelet has started", Leftovers{}, 0)
}
