package apply

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// rivalTable is the name of kube-proxy's table in mode nftables, in both families (kube-proxy: nftables/proxier.go).
const rivalTable = "kube-proxy"

// TakeOver makes the first sync that succeeds replace kube-proxy's tables: they go in the batch in which ours come, so that
// every packet meets one of the two. Tables of kube-proxy that appear later are left alone, see [Result.Rival].
func (k *Kernel) TakeOver() { k.takeOver = true }

// rivals lists the families in which kube-proxy has a table.
func (k *Kernel) rivals() (families []nft.Family, err error) {
	for _, f := range model.Families {
		found, err := k.conn.HasTable(plan.NFT(f), rivalTable)
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
	if k.takeOver {
		for _, f := range k.found {
			b.DeleteTable(f, rivalTable)
		}
	}
}
