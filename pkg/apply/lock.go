package apply

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Tables that are planned with [plan.Options.LockTables] belong to the connection: the kernel refuses what others want to change there,
// and passes them over when somebody flushes the ruleset. When the process ends they stay, and belong to nobody until the next one
// claims them. What is made to be locked can't be unlocked, and the other way around, so that such a table is made anew, in one batch.

// CanLock reports whether the kernel can lock tables. It asks by a batch that isn't committed.
func (k *Kernel) CanLock() (bool, error) {
	b := nft.NewBatch(0)
	b.AddTable(&nft.Table{Family: nft.IPv4, Name: plan.TableName + "-probe", Locked: true})
	refused, err := k.conn.Check(b)
	if err != nil {
		return false, fmt.Errorf("ask whether tables can be locked: %w", err)
	}
	return len(refused) == 0, nil
}

// errLocked says what a refusal means.
var errLocked = errors.New("another program has locked the table: does another kube-nftproxy run here?")

// claim locks tables that have been found as they should be, as far as they are to be locked.
func (k *Kernel) claim(tables []*nft.Table) error {
	b := nft.NewBatch(0)
	lock(b, tables)
	if b.Empty() {
		return nil
	}
	_, err := k.commit(b, Partial)
	return err
}

// lock adds to a batch that tables are claimed, as far as they are to be locked. It does nothing to those that are.
func lock(b *nft.Batch, tables []*nft.Table) {
	for _, t := range tables {
		if t.Locked {
			b.AddTable(t)
		}
	}
}

// Release gives up the lock of the tables, so that another process can write them; the next sync claims them.
func (k *Kernel) Release() {
	for _, t := range k.tables {
		if t.Locked {
			k.conn.Release()
			return
		}
	}
}

// forbidden adds to an error what the kernel means by it.
func forbidden(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (%w)", err, errLocked)
	}
	return err
}
