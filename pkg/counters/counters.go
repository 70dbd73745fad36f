package counters

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Counts are numbers of new connections, by what became of them.
type Counts struct {
	// Connections were sent on to an endpoint.
	Connections uint64
	// Refused were refused or dropped. A client that tries again counts again.
	Refused [Reasons]uint64
}

// Reason is why a connection was refused or dropped.
type Reason uint8

// The reasons.
const (
	// NoEndpoints: the Service has none; refused.
	NoEndpoints Reason = iota
	// NoLocalEndpoints: the traffic policy is Local and none is on this node; dropped.
	NoLocalEndpoints
	// SourceRange: the client isn't in loadBalancerSourceRanges; dropped.
	SourceRange
	// UnusedPort: the Service doesn't have that port on its cluster IP; refused. It belongs to the Service, not to a port.
	UnusedPort
	// UnusedAddress: no Service has that address of a ServiceCIDR; dropped. It belongs to no Service.
	UnusedAddress
	// Reasons is the number of reasons.
	Reasons
)

// String returns the reason as metrics have it.
func (r Reason) String() string {
	return [...]string{"no_endpoints", "no_local_endpoints", "source_range", "unused_port", "unused_address"}[r]
}

// Counters adds up. Its methods may be called by any goroutine.
type Counters struct {
	meanings *plan.Counters
	// conn reads, and is used for nothing else.
	conn *nft.Conn

	mu sync.Mutex
	// committing is set while a batch is sent that deletes counted elements; settled tells when there is none.
	committing bool
	settled    *sync.Cond
	// seen is what present elements had counted when they were last read; those that hadn't counted anything aren't there.
	seen map[place]uint64
	// replaced are elements that have gone since the reading under way began: what it says of them may be older.
	replaced    map[place]struct{}
	replacedAll bool
	// inherited says that an earlier process has made the elements: what they have counted by now is where counting begins.
	inherited bool
	tallies
	// round is the number of the present or last reading, torn how many in a row haven't seen all elements, from tornSince on.
	round, torn, tornSince int
	// reading is closed when the reading under way has ended; nil if there is none. The next one may begin at next.
	reading chan struct{}
	next    time.Time
	failed  error
}

// place is where an element stands.
type place struct {
	set *nft.Set
	key nft.Value
}

// Open returns counters for the elements of a planner, in the network namespace of the calling thread. They have counted nothing yet.
func Open(meanings *plan.Counters) (*Counters, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection for counters: %w", err)
	}
	c := &Counters{
		meanings: meanings, conn: conn, seen: map[place]uint64{}, replaced: map[place]struct{}{}, inherited: true, tallies: newTallies(),
	}
	c.settled = sync.NewCond(&c.mu)
	return c, nil
}

// Close waits for the reading under way, and closes the connection. Nothing may be asked afterwards.
func (c *Counters) Close() error {
	c.mu.Lock()
	reading := c.reading
	c.next = time.Now().Add(1 << 62)
	c.mu.Unlock()
	if reading != nil {
		<-reading
	}
	return c.conn.Close()
}

// Adopted says that the tables are those of an earlier process. What they have counted so far is read at once.
func (c *Counters) Adopted() { c.refresh() }

// Begin says that a batch that deletes counted elements is about to be sent.
func (c *Counters) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = true
}

// End says that it has been, and what the elements that went had counted. With all set, all elements have been made anew.
func (c *Counters) End(gone []nft.Counted, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = false
	c.settled.Broadcast()
	for i := range gone {
		e := &gone[i]
		at := place{e.Set, e.Key}
		c.count(e, at)
		delete(c.seen, at)
		if c.reading != nil {
			c.replaced[at] = struct{}{}
		}
	}
	if all {
		clear(c.seen)
		c.replacedAll, c.inherited = c.reading != nil, false
	}
	if c.crowded() {
		c.begin()
	}
}

// count adds what an element has counted since it was last seen.
func (c *Counters) count(e *nft.Counted, at place) {
	was := c.seen[at]
	if e.Packets < was {
		was = 0 // somebody has set it back, or replaced it
	}
	if n := e.Packets - was; n > 0 && !c.inherited {
		c.attribute(c.meanings, e, n)
	}
}

// errBusy says that a reading is under way for longer than one wanted to wait.
var errBusy = errors.New("the kernel's counters are still being read")

// Await waits until what present elements have counted has been read lately, but no longer than a time. What was read before
// is there in any case.
func (c *Counters) Await(patience time.Duration) error {
	reading := c.refresh()
	if reading != nil {
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case <-reading:
		case <-late.C:
			return errBusy
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// refresh begins a reading unless the last one was lately. It returns nil if none is under way.
func (c *Counters) refresh() (reading <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	return c.reading
}

// begin is refresh for those who hold mu.
func (c *Counters) begin() {
	if c.reading == nil && !time.Now().Before(c.next) {
		c.reading = make(chan struct{})
		go c.read()
	}
}

// every is the least time between two readings, and share how much longer than the last one took.
const (
	every = time.Second
	share = 50
)

// read reads all counters.
func (c *Counters) read() {
	start := time.Now()
	r, err := c.readSets()
	took := time.Since(start)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err; err == nil {
		c.concluded(r)
	}
	clear(c.replaced)
	c.replacedAll = false
	c.next = time.Now().Add(max(every, share*took))
	close(c.reading)
	c.reading = nil
}

// patienceWithTorn is how many readings in a row may miss elements before what they have seen has to do.
const patienceWithTorn = 5

// reading is what can be said of one.
type reading struct {
	// whole says that it has seen all elements, allowed that it has seen all that say what source ranges have allowed.
	whole, allowed bool
}

// concluded takes up that a reading has come to its end.
func (c *Counters) concluded(r reading) {
	if r.allowed && len(c.replaced) == 0 && !c.replacedAll {
		c.settle()
	}
	if c.torn++; c.torn == 1 {
		c.tornSince = c.round
	}
	switch {
	case r.whole:
		c.forget(c.round)
	case c.torn == patienceWithTorn:
		// What is there has been seen by one of so many readings, though none has seen all.
		c.forget(c.tornSince)
	default:
		return
	}
	c.torn, c.inherited = 0, false
}

func (c *Counters) readSets() (r reading, err error) {
	c.mu.Lock()
	c.round++
	c.mu.Unlock()
	r.whole, r.allowed = true, true
	for _, s := range c.meanings.Sets() {
		whole, err := c.readSet(s)
		if err != nil {
			return r, err
		}
		r.whole = r.whole && whole
		r.allowed = r.allowed && (whole || !c.meanings.Allows(s))
	}
	return r, nil
}

// chunk is how many elements are taken up at once: the loop waits no longer than for one.
const chunk = 128

func (c *Counters) readSet(s *nft.Set) (whole bool, err error) {
	room := make([]nft.Counted, 0, chunk)
	untouched := true
	take := func() {
		untouched = c.take(room) && untouched
		room = room[:0]
	}
	whole, err = c.conn.EachCounted(s, func(e *nft.Counted) {
		if room = append(room, *e); len(room) == chunk {
			take()
		}
	})
	take()
	return whole && untouched, err
}

// take takes up elements that have been read. It reports false where what was read may be older than what is there.
func (c *Counters) take(list []nft.Counted) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.committing {
		c.settled.Wait()
	}
	if c.replacedAll {
		return false
	}
	for i := range list {
		e := &list[i]
		at := place{e.Set, e.Key}
		if _, gone := c.replaced[at]; !gone {
			c.count(e, at)
			if e.Packets > 0 {
				c.seen[at] = e.Packets
			} else {
				delete(c.seen, at)
			}
		}
		c.mark(c.meanings, e, c.round)
	}
	return true
}
