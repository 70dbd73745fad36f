package apply

import (
	"sync/atomic"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// KubeProxyTable is the name of kube-proxy's table in mode nftables, in both families (kube-proxy:
// nftables/proxier.go).
const KubeProxyTable = "kube-proxy"

// takeOver is the deletion of kube-proxy's tables in the first successful sync.
type takeOver struct {
	// wanted is false after that sync. found are the families in which [takeOver.find] found a table of kube-proxy.
	wanted bool
	found  []inet.Family
	// alone reports whether no kube-proxy runs.
	alone func() bool
	// cancelled may be set by any goroutine.
	cancelled atomic.Bool
}

// TakeOver makes the first successful sync replace kube-proxy's tables. One batch adds the tables of this program and
// deletes kube-proxy's tables, so at each hook, a packet meets exactly one of the two. alone reports whether no
// kube-proxy runs. The sync calls it when it has found tables of kube-proxy, and again before it adds the elements to
// the batch. Unless alone returns true, the tables stay. Tables of kube-proxy that appear later stay, too.
func (k *Kernel) TakeOver(alone func() bool) { k.takeOver.wanted, k.takeOver.alone = true, alone }

// KeepKubeProxy cancels [Kernel.TakeOver], because a kube-proxy runs. Any goroutine may call it.
func (k *Kernel) KeepKubeProxy() { k.takeOver.cancelled.Store(true) }

// find looks for tables of kube-proxy to delete.
func (t *takeOver) find(conn *nft.Conn) (err error) {
	if t.found = nil; t.wanted {
		t.found, err = KubeProxyTables(conn)
		t.recheck()
	}
	return err
}

// recheck cancels the deletion if a kube-proxy runs.
func (t *takeOver) recheck() {
	if len(t.found) > 0 && (t.cancelled.Load() || !t.alone()) {
		t.settle()
	}
}

func (t *takeOver) settle() { t.wanted, t.found = false, nil }

// KubeProxyTables returns the families in which kube-proxy has a table.
func KubeProxyTables(conn *nft.Conn) (families []inet.Family, err error) {
	for _, f := range inet.Families {
		found, err := conn.HasTable(f, KubeProxyTable)
		if err != nil {
			return nil, err
		}
		if found {
			families = append(families, f)
		}
	}
	return families, nil
}

// deleteKubeProxyTables adds the deletion of kube-proxy's tables to a batch, unless a kube-proxy has started meanwhile.
func (k *Kernel) deleteKubeProxyTables(b *nft.Batch) {
	k.takeOver.recheck()
	for _, f := range k.takeOver.found {
		b.DeleteTable(f, KubeProxyTable)
	}
}
