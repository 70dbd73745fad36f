package control

import (
	"context"
	"sync"
	"sync/atomic"
)

// Feed passes values to its present readers. Publishing never blocks: a slow reader loses the oldest values, and
// receives their number.
type Feed[T any] struct {
	readers atomic.Int32

	mu   sync.Mutex
	list map[*Reader[T]]struct{}
}

// Reader is a reader of a feed.
type Reader[T any] struct {
	feed  *Feed[T]
	ready chan struct{}

	// The feed's mutex guards these fields.
	waiting []T
	lost    uint64
}

// mostWaiting is the number of values that wait for one reader.
const mostWaiting = 256

// Watched reports whether there are readers.
func (f *Feed[T]) Watched() bool { return f.readers.Load() > 0 }

// Publish passes a value to all readers.
func (f *Feed[T]) Publish(value T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.list {
		if len(r.waiting) == mostWaiting {
			copy(r.waiting, r.waiting[1:])
			r.waiting = r.waiting[:mostWaiting-1]
			r.lost++
		}
		r.waiting = append(r.waiting, value)
		select {
		case r.ready <- struct{}{}:
		default: // a signal is pending already
		}
	}
}

// Subscribe returns a reader of all values published from now on.
func (f *Feed[T]) Subscribe() *Reader[T] {
	r := &Reader[T]{feed: f, ready: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		f.list = map[*Reader[T]]struct{}{}
	}
	f.list[r] = struct{}{}
	f.readers.Store(int32(len(f.list)))
	return r
}

// Close ends the subscription.
func (r *Reader[T]) Close() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	delete(r.feed.list, r)
	r.feed.readers.Store(int32(len(r.feed.list)))
}

// Next returns the next value, and the number of values lost before it. It waits for one until the context ends.
func (r *Reader[T]) Next(ctx context.Context) (value T, lost uint64, err error) {
	for {
		if value, lost, ok := r.take(); ok {
			return value, lost, nil
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
			return value, 0, ctx.Err()
		}
	}
}

func (r *Reader[T]) take() (value T, lost uint64, ok bool) {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	if len(r.waiting) == 0 {
		return value, 0, false
	}
	value, r.waiting = r.waiting[0], r.waiting[1:]
	lost, r.lost = r.lost, 0
	return value, lost, true
}
