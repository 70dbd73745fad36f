package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// abandonedAfter is the time without a renewal of the lease after which the process that serves is considered not to
// work. renewEvery is the time between two renewals.
const (
	abandonedAfter = 30 * time.Second
	renewEvery     = abandonedAfter / 3
)

// renewAgain is the time between a failed renewal and the next attempt, and between two looks at the lease that
// another process renews.
const renewAgain = 2 * time.Second

// renewals counts the commits of [Lease.Run], so that a sync does not mistake them for foreign commits.
type renewals struct {
	// mu is locked while a renewal is sent and counted, and while the ruleset's generation is read.
	mu    sync.Mutex
	count uint32
	// last is the time of the last commit that renewed the lease, in nanoseconds since 1970; 0 before the first one. A full sync renews it, too.
	last atomic.Int64
}

// moment is the ruleset's generation, with the number of renewals that it includes.
type moment struct{ generation, renewals uint32 }

// readMoment returns the current moment.
func (k *Kernel) readMoment() (m moment, err error) {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	m.generation, err = k.conn.Generation()
	m.renewals = k.renewals.count
	return m, err
}

// foreign returns the number of foreign commits between the last moment of [Kernel.reach] and m.
func (k *Kernel) foreign(m moment) int {
	return int(int32(m.generation - k.generation - (m.renewals - k.renewed)))
}

// reach records a moment. All commits up to this moment are accounted for.
func (k *Kernel) reach(m moment) { k.generation, k.renewed = m.generation, m.renewals }

// Leased returns the time of the last renewal of the lease, or the zero time if there was none. Any goroutine may call it.
func (k *Kernel) Leased() time.Time {
	if at := k.renewals.last.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Lease renews the lease of the tables beside the loop, with its own connection. So the lease does not expire during a long sync. Before the first
// sync, Lease renews the lease of the tables that an earlier process left.
type Lease struct {
	kernel *Kernel
	conn   *nft.Conn
	// elements are copies of the planner's elements with copies of their sets, because syncs change the planner's sets.
	elements []nft.Element
	// every and abandoned are [renewEvery] and [abandonedAfter].
	every, abandoned time.Duration
	// May reports whether this process serves the tables.
	May func() bool
	// Failed receives the error of a failed commit. Failed renewals that follow are not reported until a renewal succeeds.
	Failed func(error)
	// Abandoned is called while this process does not serve, if no process has renewed the lease for a while. Only a
	// process with CAP_NET_ADMIN can renew it, so no other process can pretend to serve.
	Abandoned func()
}

// Lease returns a [Lease] for the planner's tables. It opens a connection in the network namespace of the calling thread.
func (k *Kernel) Lease(p *plan.Planner) (*Lease, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection for the lease: %w", err)
	}
	l := &Lease{
		kernel: k, conn: conn, every: renewEvery, abandoned: abandonedAfter,
		May: func() bool { return true }, Failed: func(error) {}, Abandoned: func() {},
	}
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

// Run renews the lease immediately and then periodically, until the context is done. Then it shortens the lease to
// [plan.LeaseAtExit], so that another proxy need not wait for its end, and closes the connection. While this process does
// not serve, Run watches whether another process renews the lease.
func (l *Lease) Run(ctx context.Context) {
	defer l.conn.Close() //nolint:errcheck // nothing is lost
	failing, last := false, time.Now()
	for {
		pause := min(l.every, renewAgain)
		if !l.May() {
			if last = l.lastRenewal(last); time.Since(last) > l.abandoned {
				l.Abandoned()
				last = time.Now()
			}
		} else {
			last = time.Now()
			pause = l.every
			err := l.set(0)
			if err != nil {
				pause = min(l.every, renewAgain)
				if !failing {
					l.Failed(fmt.Errorf("renew the lease: %w", err))
				}
			}
			failing = err != nil
		}
		select {
		case <-ctx.Done():
			if !l.May() {
				return
			}
			if err := l.set(plan.LeaseAtExit); err != nil {
				l.Failed(fmt.Errorf("shorten the lease: %w", err))
			}
			return
		case <-time.After(pause):
		}
	}
}

// lastRenewal returns the time of the last renewal by any process, or known if that is later or no lease can be read.
func (l *Lease) lastRenewal(known time.Time) time.Time {
	for i := range l.elements {
		if i > 0 && l.elements[i].Set == l.elements[i-1].Set {
			continue
		}
		_ = l.conn.EachFound(l.elements[i].Set, func(f *nft.Found) { // a lease in a missing table is not renewed
			if at := time.Now().Add(f.Expires - plan.Lease); at.After(known) {
				known = at
			}
		})
	}
	return known
}

// set restarts the lease of the tables that exist and have a set lease of the same form, with a timeout in whole seconds, or
// 0 for [plan.Lease].
func (l *Lease) set(timeout time.Duration) error {
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
			l.restart(b, set, timeout)
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
	l.kernel.others.setRenewer(port)
	if err := l.conn.Commit(b); err != nil {
		return err
	}
	r.count++
	r.last.Store(time.Now().UnixNano())
	return nil
}

// exists reports whether the kernel has a set with the name and form of s.
func (l *Lease) exists(s *nft.Set) (bool, error) {
	sets, err := l.conn.Sets(s.Family, s.Table)
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

// restart adds commands to a batch that replace the elements of a set lease, so that their timeouts restart.
func (l *Lease) restart(b *nft.Batch, set *nft.Set, timeout time.Duration) {
	b.FlushSet(set, 0) // the kernel cannot delete an expired element by its key
	for _, e := range l.elements {
		if e.Set == set {
			e.Timeout = uint16(timeout / time.Second)
			b.AddElement(&e)
		}
	}
}
