package apply

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// DropUnserved deletes the tables that an earlier process left in the IP families that are not served, because no
// process updates them. It deletes each table in its own batch, and returns the families of the deleted tables. Call it
// only after a successful sync. After an error, the next sync compares the tables of the served families.
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
			if _, err = k.sendBatch(b, Partial); err == nil {
				dropped = append(dropped, f)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete the table of %s: %w", f, err))
		}
	}
	return dropped, errors.Join(errs...)
}
