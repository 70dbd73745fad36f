package apply

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// DropUnserved deletes the tables of this program in those IP families that are not served, each in a batch of its own: an earlier process
// has left them, and nothing keeps them in step. It returns which there were. It is to be called between two syncs; after an error the
// next one compares the tables of the served families.
func (k *Kernel) DropUnserved(served []inet.Family) (dropped []inet.Family, err error) {
	var errs []error
	for _, f := range inet.Families {
		if slices.Contains(served, f) {
			continue
		}
		found, err := k.conn.HasTable(f, k.Table)
		if err == nil && found {
			b := nft.NewBatch(0)
			b.DeleteTable(f, k.Table)
			if _, err = k.commit(b, Partial); err == nil {
				dropped = append(dropped, f)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete the table of %s: %w", f, err))
		}
	}
	return dropped, errors.Join(errs...)
}
