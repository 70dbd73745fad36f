package control

import (
	"context"
	"sync/atomic"
)

// Feed passes values from one goroutine to one reader. Publishing never blocks: a slow reader loses the oldest values,
// and receives their number.
type Feed[T any] struct {
	waiting chan T
	lost    atomic.Uint64
}

// mostWaiting is the number of values that wait for the reader.
const mostWaiting = 256

// NewFeed returns a feed without values.
func NewFeed[T any]() *Feed[T] { return &Feed[T]{waiting: make(chan T, mostWaiting)} }

// Publish passes a value to the reader.
func (f *Feed[T]) Publish(value T) {
	if len(f.waiting) == mostWaiting {
		select {
		case <-f.waiting:
			f.lost.Add(1)
		default: // the reader has just taken one
		}
	}
	f.waiting <- value // there is room, because only Publish adds values
}

// Next returns the next value, and the number of values that were lost meanwhile. It waits for one until the context
// ends.
func (f *Feed[T]) Next(ctx context.Context) (value T, lost uint64, err error) {
	select {
	case value = <-f.waiting:
		return value, f.lost.Swap(0), nil
	case <-ctx.Done():
		return value, 0, ctx.Err()
	}
}
