package proxy

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// If the kernel cannot report foreign changes, a sync compares the tables. If the comparison fails too, the loop
// counts and retries it like any failed sync.
func TestAFailedCheckCausesAComparison(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		synctest.Wait()
		_, before := b.kernel.held()
		b.kernel.mu.Lock()
		b.kernel.blind = errors.New("no buffer space available")
		b.kernel.fail = func(int) error { return b.kernel.blind }
		b.kernel.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		_, after := b.kernel.held()
		if after < before+2 {
			t.Errorf("%d syncs in two seconds in which the kernel couldn't be queried", after-before)
		}
		if failures := count(t, b.registry, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); len(failures) == 0 || b.Kernel.Known() {
			t.Errorf("%v failures are counted; known: %v", failures, b.Kernel.Known())
		}
		b.kernel.mu.Lock()
		b.kernel.blind, b.kernel.fail = nil, nil
		b.kernel.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !b.Kernel.Known() {
			t.Error("the tables are still not trusted after the kernel answers again")
		}
	})
}

// plannedAddresses returns the number of IPv4 addresses on which the plan has node ports.
func (b *bench) plannedAddresses() (count int) {
	b.Planner.Elements(func(e *nft.Element) {
		if e.Set.Family == inet.IPv4 && e.Set.Name == plan.NodeAddressesSet {
			count++
		}
	})
	return count
}

// A failed read of the node's addresses is retried without an announced change.
func TestAFailedReadOfAddressesIsRetried(t *testing.T) {
	run(t, func(b *bench) {
		fails := 3
		b.NodePorts = model.NodePortAddresses{
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Local: func() ([]netip.Addr, error) {
				if fails--; fails >= 0 {
					return nil, errors.New("too many open files")
				}
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			},
		}
		close(b.source.synced)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := b.plannedAddresses(); got != 1 {
			t.Errorf("node ports are served on %d addresses, want 1", got)
		}
	})
}

// If the node's addresses cannot be read at the start, the first sync waits for them, to keep the node ports of an
// earlier process. The wait is limited, because all other Services wait, too.
func TestTheFirstSyncWaitsForAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		fails  time.Duration
		want   int
		within time.Duration
	}{
		"read at once":  {0, 1, 0},
		"read later":    {5 * time.Second, 1, 6 * time.Second},
		"not for hours": {time.Hour, 0, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				begun := time.Now()
				b.NodePorts = model.NodePortAddresses{
					Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
					Local: func() ([]netip.Addr, error) {
						if time.Since(begun) < c.fails {
							return nil, errors.New("too many open files")
						}
						return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
					},
				}
				first := -1
				var at time.Duration
				b.kernel.fail = func(n int) error {
					if n == 1 {
						first, at = b.plannedAddresses(), time.Since(begun)
					}
					return nil
				}
				close(b.source.synced)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if first != c.want || at > c.within {
					t.Errorf("the first sync was after %v, with %d addresses; want %d within %v", at, first, c.want, c.within)
				}
			})
		})
	}
}
