package apply

import (
	"sync/atomic"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// KubeProxyTable is the name of kube-proxy's table in mode nftables, in both families (kube-proxy: nftables/proxier.go).
const KubeProxyTable = "kube-proxy"

// takeOver is the replacement of kube-proxy's tables by the first sync that succeeds.
type takeOver struct {
	// wanted is false from that sync on; found are the families in which kube-proxy had a table at the last look.
	wanted bool
	found  []inet.Family
	// alone reports whether no kube-proxy runs.
	alone func() bool
	// cancelled may be set by any goroutine.
	cancelled atomic.Bool
}

// TakeOver makes the first sync that succeeds replace kube-proxy's tables: the batch that adds the tables of this program deletes
// them, so that every packet meets one of the two. Right before that batch, alone is asked whether no kube-proxy runs; unless it
// reports true, the tables stay. Tables of kube-proxy that appear later are left alone.
func (k *Kernel) TakeOver(alone func() bool) { k.takeOver.wanted, k.takeOver.alone = true, alone }

// KeepKubeProxy takes [Kernel.TakeOver] back: a kube-proxy runs. Any goroutine may call it.
func (k *Kernel) KeepKubeProxy() { k.takeOver.cancelled.Store(true) }

// find looks for tables that are to be replaced.
func (t *takeOver) find(conn *nft.Conn) (err error) {
	if t.found = nil; t.wanted {
		t.found, err = KubeProxyTables(conn)
		t.confirm()
	}
	return err
}

// confirm forgets the tables that were found if a kube-proxy runs.
func (t *takeOver) confirm() {
	if len(t.found) > 0 && (t.cancelled.Load() || !t.alone()) {
		t.settle()
	}
}

func (t *takeOver) settle() { t.wanted, t.found = false, nil }

// KubeProxyTables lists the families in which kube-proxy has a table.
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

// replace adds to a batch, as the last thing before it is sent, that kube-proxy's tables are deleted.
func (k *Kernel) replace(b *nft.Batch) {
	k.takeOver.confirm()
	for _, f := range k.takeOver.found {
		b.DeleteTable(f, KubeProxyTable)
	}
}
