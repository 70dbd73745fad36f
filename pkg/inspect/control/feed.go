package control

import (
	"context"
	"sync"
	"sync/atomic"
)

// Feed passes values to its present readers. Publishing never blocks: a slow reader loses the oldest values, and
// receives their number.
type Feed[T any] struct {
	mu   sync.Mutex
	list map[*Reader[T]]struct{}
}

// Reader is a reader of a feed.
type Reader[T any] struct {
	feed    *Feed[T]
	waiting chan T
	lost    atomic.Uint64
}

// mostWaiting is the number of values that wait for one reader.
const mostWaiting = 256

// Watched reports whether there are readers.
func (f *Feed[T]) Watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.list) > 0
}

// Publish passes a value to all readers.
func (f *Feed[T]) Publish(value T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.list {
		if len(r.waiting) == mostWaiting {
			select {
			case <-r.waiting:
				r.lost.Add(1)
			default: // the reader has just taken one
			}
		}
		r.waiting <- value // there is room, because only Publish adds values
	}
}

// Subscribe returns a reader of all values published from now on.
func (f *Feed[T]) Subscribe() *Reader[T] {
	r := &Reader[T]{feed: f, waiting: make(chan T, mostWaiting)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		f.list = map[*Reader[T]]struct{}{}
	}
	f.list[r] = struct{}{}
	return r
}

// Close ends the subscription.
func (r *Reader[T]) Close() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	delete(r.feed.list, r)
}

// Next returns the next value, and the number of values that were lost meanwhile. It waits for one until the context
// ends.
func (r *Reader[T]) Next(ctx context.Context) (value T, lost uint64, err error) {
	select {
	case value = <-r.waiting:
		return value, r.lost.Swap(0), nil
	case <-ctx.Done():
		return value, 0, ctx.Err()
	}
}
