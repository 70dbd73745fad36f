package apply

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// KubeProxyTable is the name of kube-proxy's table in mode nftables, in both families (kube-proxy: nftables/proxier.go).
const KubeProxyTable = "kube-proxy"

// TakeOver makes the first sync that succeeds replace kube-proxy's tables: they go in the batch in which ours come, so that
// every packet meets one of the two. Tables of kube-proxy that appear later are left alone.
func (k *Kernel) TakeOver() { k.takeOver = true }

// KubeProxyTables lists the families in which kube-proxy has a table.
func KubeProxyTables(conn *nft.Conn) (families []nft.Family, err error) {
	for _, f := range model.Families {
		found, err := conn.HasTable(plan.NFT(f), KubeProxyTable)
		if err != nil {
			return nil, err
		}
		if found {
			families = append(families, plan.NFT(f))
		}
	}
	return families, nil
}

// replace adds to a batch that kube-proxy's tables go, if they are to be replaced.
func (k *Kernel) replace(b *nft.Batch) {
	for _, f := range k.found {
		b.DeleteTable(f, KubeProxyTable)
	}
}
