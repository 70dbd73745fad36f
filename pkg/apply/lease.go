package apply

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Renew restarts the lease of the tables that exist and have a set lease of the planner's form, also if an earlier
// process left them. The lease then lasts for a time in whole seconds, or for [plan.Lease] if the time is 0. A failed
// renewal changes nothing else.
func (k *Kernel) Renew(p *plan.Planner, lasts time.Duration) error {
	start, b := k.Now(), nft.NewBatch(0)
	for _, lease := range leases(p) {
		exists, err := k.hasSet(lease)
		if err != nil {
			return fmt.Errorf("renew the lease: %w", err)
		}
		if exists {
			restart(b, lease, lasts)
		}
	}
	if b.Empty() {
		return nil
	}
	if err := k.commit(b); err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	k.leased = start
	return nil
}

func leases(p *plan.Planner) []*nft.Set { return plan.SetsNamed(p.Tables(), plan.LeaseSet) }

// restart adds commands to a batch that replace the elements of a family's lease, so that their timeouts restart.
func restart(b *nft.Batch, lease *nft.Set, lasts time.Duration) {
	b.FlushSet(lease, 0) // the kernel cannot delete an expired element by its key
	for _, e := range plan.LeaseElements(lease) {
		e.Timeout = uint16(lasts / time.Second)
		b.AddElement(&e)
	}
}

// hasSet reports whether the kernel has a set with the name and form of s.
func (k *Kernel) hasSet(s *nft.Set) (bool, error) {
	sets, err := k.conn.Sets(s.Family, s.Table)
	if errors.Is(err, unix.ENOENT) {
		return false, nil // the table is missing
	}
	for i := range sets {
		if sets[i].Name == s.Name && sets[i].Is(s) {
			return true, err
		}
	}
	return false, err
}

// Leased returns the time at which this process last renewed the lease, by Renew or a full sync. It is zero if there
// was no renewal.
func (k *Kernel) Leased() time.Time { return k.leased }

// IsLeased reports whether the kernel has the tables of all families of a planner, with a lease that has not expired.
func (k *Kernel) IsLeased(p *plan.Planner) bool {
	for _, lease := range leases(p) {
		lasts := false
		_, _ = k.conn.Each(lease, func(*nft.Found) bool { // without an element, the lease is missing or has expired
			lasts = true
			return false
		})
		if !lasts {
			return false
		}
	}
	return true
}

// LeasedByAny returns the time of the last renewal of the lease by any process. It is zero if no lease can be read.
// Only a process with CAP_NET_ADMIN can renew the lease, so no other process can pretend to serve.
func (k *Kernel) LeasedByAny(p *plan.Planner) (last time.Time) {
	for _, lease := range leases(p) {
		_, _ = k.conn.Each(lease, func(f *nft.Found) bool { // a lease in a missing table is not renewed
			if at := k.Now().Add(f.Expires - plan.Lease); at.After(last) {
				last = at
			}
			return true
		})
	}
	return last
}

// fewForgotten is the largest number of clients that Forget skips together. A batch that fails takes milliseconds on a
// busy node.
const fewForgotten = 100

// Forget deletes remembered clients, and returns the number of deleted ones. It skips those that packets or their
// timeouts have deleted meanwhile: the kernel rejects a batch with a missing element as a whole, so Forget then tries
// the two halves, down to fewForgotten clients. It deletes nothing while the tables are not known to match the plan.
func (k *Kernel) Forget(clients []nft.Element) (int, error) {
	if !k.known || len(clients) == 0 {
		return 0, nil
	}
	b := nft.NewBatch(0)
	for i := range clients {
		b.DeleteElement(&clients[i])
	}
	err := k.commit(b)
	switch {
	case err == nil:
		return len(clients), nil
	case !errors.Is(err, unix.ENOENT) || errors.Is(err, nft.ErrUnknown):
		return 0, fmt.Errorf("forget clients: %w", err)
	case len(clients) <= fewForgotten:
		return 0, nil
	}
	half := len(clients) / 2 //nolint:mnd // a half
	n, err := k.Forget(clients[:half])
	if err != nil {
		return n, err
	}
	m, err := k.Forget(clients[half:])
	return n + m, err
}
