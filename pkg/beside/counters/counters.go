package counters

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Counts are numbers of new connections, by outcome. Each retry of a client counts. Only [outcome.Forwarded] and
// the outcomes with a label have counts.
type Counts [outcome.Codes]uint64

// OfFrontend returns the numbers of connections to a frontend that the rules rejected or dropped, and of those that
// they always drop.
func (c *Counts) OfFrontend() (refused, dropped uint64) {
	for code, row := range outcome.Rows {
		if row.Label == "" || row.OfPort {
			continue
		}
		if refused += c[code]; !row.Refuses {
			dropped += c[code]
		}
	}
	return refused, dropped
}

// Counters adds up the counts of elements. Its methods are safe for concurrent use.
type Counters struct {
	// conn is only used to read counters.
	conn *nft.Conn

	mu sync.Mutex
	// committing is true during a batch that deletes counted elements. settled is signalled at the end of the batch.
	committing bool
	settled    *sync.Cond
	// seen has the last known count of each present element, unless it is 0.
	seen map[place]uint64
	// replaced are the elements that a batch deleted during the current reading: their values in this reading may be
	// stale. replacedAll is true if a batch deleted all elements.
	replaced    map[place]struct{}
	replacedAll bool
	// inherited is true while the elements are those of an earlier process. Their first known counts are starting
	// points, and are not added.
	inherited bool
	tallies
	// endpoints are nil unless the elements of endpoints have counters.
	endpoints *endpoints
	// round is the number of the current or last reading. torn is the number of incomplete readings in a row, and
	// tornSince is the round of the first one.
	round, torn, tornSince int
	// kept is the number of entries after stale ones were last removed. If the number is more than twice that, plus
	// fewEntries, a reading removes stale entries even if no client reads the metrics.
	kept int
	// reading is closed at the end of the current reading; it is nil if none runs. The next reading may start at the
	// time next.
	reading chan struct{}
	next    time.Time
	failed  error
}

// place identifies an element.
type place struct {
	set *nft.Set
	key nft.Value
}

// Open returns counters for the elements of a planner, in the network namespace of the calling thread. All counts are
// 0.
func Open(meanings *plan.Counters) (*Counters, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection for counters: %w", err)
	}
	c := &Counters{
		conn: conn, seen: map[place]uint64{}, replaced: map[place]struct{}{}, inherited: true,
		tallies: newTallies(meanings),
	}
	if meanings.CountsEndpoints() {
		c.endpoints = newEndpoints(meanings)
	}
	c.settled = sync.NewCond(&c.mu)
	return c, nil
}

// Close waits for the current reading, and closes the connection. Do not call other methods afterwards.
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

// Adopted starts a reading. Call it after the program has adopted the tables of an earlier process: their present
// counts become the starting points.
func (c *Counters) Adopted() { c.refresh() }

// Begin must be called before a batch that deletes counted elements.
func (c *Counters) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = true
}

// End must be called after this batch, with the final counts of the deleted elements. all is true if the batch
// rewrote all elements.
func (c *Counters) End(gone []nft.Found, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = false
	c.settled.Broadcast()
	c.endpoints.learnAll(gone, c.round)
	for i := range gone {
		e := &gone[i]
		at := place{e.Set, e.Key}
		c.count(e, at)
		delete(c.seen, at)
		if c.reading != nil {
			c.replaced[at] = struct{}{}
		}
		c.endpoints.doubt(e)
	}
	if all {
		clear(c.seen)
		c.replacedAll, c.inherited = c.reading != nil, false
	}
	if c.tallies.entries()+c.endpoints.entries() > 2*c.kept+fewEntries || c.endpoints.unplaced() {
		c.begin()
	}
}

// count adds the increase of an element's count since it was last seen.
func (c *Counters) count(e *nft.Found, at place) {
	before, known := c.seen[at]
	if e.Packets < before {
		before = 0 // another program has reset the counter or replaced the element
	}
	if n := e.Packets - before; n > 0 && !c.inherited {
		if c.endpoints.of(e) {
			c.endpoints.add(e, n, !known)
		} else {
			c.attribute(e, n)
		}
	}
}

// errBusy means that a reading did not end within the caller's patience.
var errBusy = errors.New("the kernel's counters are still being read")

// Await waits until the counts of present elements are recent, but no longer than patience. After an error, the
// counts of the previous reading are available.
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

// refresh starts a reading, unless one runs or the last one was recent. It returns a channel that is closed at the
// end of the running reading, or nil if none runs.
func (c *Counters) refresh() (reading <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	return c.reading
}

// begin starts a reading, unless one runs or the last one was recent. The caller must hold mu.
func (c *Counters) begin() {
	if c.reading == nil && !time.Now().Before(c.next) {
		c.reading = make(chan struct{})
		go c.read()
	}
}

// The pause between two readings is at least every, and at least share times the duration of the last reading.
const (
	every = time.Second
	share = 50
)

// read reads all counters.
func (c *Counters) read() {
	start := time.Now()
	r, err := c.readSets()
	c.placeEndpoints()
	took := time.Since(start)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err; err == nil {
		c.finish(r)
	}
	clear(c.replaced)
	c.replacedAll = false
	c.next = time.Now().Add(max(every, share*took))
	close(c.reading)
	c.reading = nil
}

// patienceWithTorn is the number of incomplete readings in a row that together count as a complete one.
const patienceWithTorn = 5

// reading is the result of a reading.
type reading struct {
	// whole is true if the reading has seen all elements. allowed is true if it has seen all elements that count
	// packets of allowed sources.
	whole, allowed bool
}

// finish processes the result of a successful reading.
func (c *Counters) finish(r reading) {
	if r.allowed && len(c.replaced) == 0 && !c.replacedAll {
		c.settle()
	}
	c.split()
	if c.torn++; c.torn == 1 {
		c.tornSince = c.round
	}
	switch {
	case r.whole:
		c.forgetBefore(c.round)
	case c.torn == patienceWithTorn:
		// At least one of these readings has seen each present element, although none has seen all.
		c.forgetBefore(c.tornSince)
	default:
		return
	}
	c.torn, c.inherited = 0, false
}

// forgetBefore removes the entries whose elements no reading since the given round has seen.
func (c *Counters) forgetBefore(round int) {
	c.forget(round)
	c.endpoints.forget(round)
	c.kept = c.tallies.entries() + c.endpoints.entries()
}

// readSets reads the counters of all sets.
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

// chunk is the number of elements that are processed under the lock at once. So the loop waits for at most one chunk.
const chunk = 128

// readSet reads the counters of a set. whole is true if it has seen all elements, and none of the values can be stale.
func (c *Counters) readSet(s *nft.Set) (whole bool, err error) {
	room := make([]nft.Found, 0, chunk)
	untouched := true
	take := func() {
		untouched = c.take(room) && untouched
		room = room[:0]
	}
	whole, err = c.conn.Each(s, func(e *nft.Found) bool {
		if room = append(room, *e); len(room) == chunk {
			take()
		}
		return true
	})
	take()
	return whole && untouched, err
}

// take processes elements of a reading. It returns false, and ignores them, if a batch has deleted all elements since
// the start of the reading.
func (c *Counters) take(list []nft.Found) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.committing {
		c.settled.Wait()
	}
	if c.replacedAll {
		return false
	}
	c.endpoints.learnAll(list, c.round)
	for i := range list {
		e := &list[i]
		at := place{e.Set, e.Key}
		if _, stale := c.replaced[at]; !stale {
			c.count(e, at)
			if e.Packets > 0 {
				c.seen[at] = e.Packets
			} else {
				delete(c.seen, at)
			}
		}
		if c.endpoints.of(e) {
			c.endpoints.mark(e, c.round)
		} else {
			c.mark(e, c.round)
		}
	}
	return true
}
