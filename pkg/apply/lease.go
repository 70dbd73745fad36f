package apply

import (
	"context"
	"errors"
	"fmt"
	locks "sync" // tests have a function of the other name
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// renewEvery is the time between two renewals of the lease. It leaves room for two failures before the lease runs out.
const renewEvery = plan.Lease / 3

// renewAgain is the time between a renewal that has failed and the next one.
const renewAgain = 2 * time.Second

// renewals count the commits by which [Lease] renews the lease, so that a sync does not take them for another program's.
type renewals struct {
	// mu is held from before a renewal is sent until it is counted, and while the ruleset's generation is read.
	mu    locks.Mutex
	count uint32
	// last is when the lease was last renewed by any commit, in nanoseconds since 1970; 0 before the first one.
	last atomic.Int64
}

// moment is the ruleset's generation together with the number of renewals up to it.
type moment struct{ generation, renewals uint32 }

// now reads the moment.
func (k *Kernel) now() (m moment, err error) {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	m.generation, err = k.conn.Generation()
	m.renewals = k.renewals.count
	return m, err
}

// foreign counts the commits of others between the moment that is known and another one.
func (k *Kernel) foreign(m moment) int {
	return int(int32(m.generation - k.generation - (m.renewals - k.renewed)))
}

// reach notes that the ruleset is known up to a moment.
func (k *Kernel) reach(m moment) { k.generation, k.renewed = m.generation, m.renewals }

// Leased returns when the lease was last renewed, the zero time where it was not. Any goroutine may call it.
func (k *Kernel) Leased() time.Time {
	if at := k.renewals.last.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Lease renews the lease of the tables beside whoever syncs them, by a connection of its own: the lease lasts while syncs take long, and
// while the process waits for its first one and tables of an earlier process are there.
type Lease struct {
	kernel *Kernel
	conn   *nft.Conn
	// elements are copies of the planner's, whose sets the syncs change.
	elements []nft.Element
	// Every is the time between two renewals.
	Every time.Duration
	// May reports whether this process serves the tables.
	May func() bool
	// Failed is called when a renewal fails, but not again before one has succeeded.
	Failed func(error)
}

// Lease returns what renews the lease of the planner's tables. It opens a connection in the network namespace of the calling thread.
func (k *Kernel) Lease(p *plan.Planner) (*Lease, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection for the lease: %w", err)
	}
	l := &Lease{kernel: k, conn: conn, Every: renewEvery, May: func() bool { return true }, Failed: func(error) {}}
	for _, e := range p.Leases() {
		set := *e.Set
		if n := len(l.elements); n > 0 && l.elements[n-1].Set.Family == set.Family {
			e.Set = l.elements[n-1].Set
		} else {
			e.Set = &set
		}
		l.elements = append(l.elements, e)
	}
	return l, nil
}

// Run renews the lease at once and then again and again, until the context ends; it closes the connection.
func (l *Lease) Run(ctx context.Context) {
	defer l.conn.Close() //nolint:errcheck // nothing is lost
	failing := false
	for {
		pause := min(l.Every, renewAgain)
		if l.May() {
			pause = l.Every
			err := l.renew()
			if err != nil {
				pause = min(l.Every, renewAgain)
				if !failing {
					l.Failed(fmt.Errorf("renew the lease: %w", err))
				}
			}
			failing = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// renew renews the lease of those tables that are there and have a lease of the known form.
func (l *Lease) renew() error {
	b := nft.NewBatch(0)
	for i := range l.elements {
		set := l.elements[i].Set
		if i > 0 && set == l.elements[i-1].Set {
			continue
		}
		there, err := l.exists(set)
		if err != nil {
			return err
		}
		if there {
			renew(b, set, l.elements)
		}
	}
	if b.Empty() {
		return nil
	}
	r := &l.kernel.renewals
	r.mu.Lock()
	defer r.mu.Unlock()
	port, err := l.conn.Port()
	if err != nil {
		return err
	}
	l.kernel.others.renewedBy(port)
	if err := l.conn.Commit(b); err != nil {
		return err
	}
	r.count++
	r.last.Store(time.Now().UnixNano())
	return nil
}

// exists reports whether there is a set of a form.
func (l *Lease) exists(s *nft.Set) (bool, error) {
	sets, err := l.conn.Sets(s.Family, s.Table)
	if errors.Is(err, unix.ENOENT) {
		return false, nil // nor is there a table
	}
	for i := range sets {
		if sets[i].Name == s.Name && sets[i].Is(s) {
			return true, err
		}
	}
	return false, err
}

// renew adds to a batch that a set of a lease has those of some elements that are its own, as if they had just come.
func renew(b *nft.Batch, set *nft.Set, elements []nft.Element) {
	b.FlushSet(set, 0) // an element that has run out can't be deleted by its key
	for i := range elements {
		if elements[i].Set == set {
			b.AddElement(&elements[i])
		}
	}
}
