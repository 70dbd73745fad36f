package statuspage

import (
	"context"
	"errors"
	"time"
)

const (
	// fresh is how long an answer is as good as a new one.
	fresh = 500 * time.Millisecond
	// share is how much longer than the last search the pause after it is, but no longer than longestPause. There are two kinds of
	// searches that take long: so all askers together have a tenth of one processor, however many they are and however often they ask.
	share        = 19
	longestPause = 5 * time.Second
	// mostKept is how many answers are kept.
	mostKept = 4
	// searchTime is how long a search may take.
	searchTime = 20 * time.Second
)

var errBusy = errors.New("find the answer: too many ask")

// paced searches for answers one at a time, with pauses, and keeps the last ones.
type paced[Q comparable] struct {
	search func(context.Context, Q) ([]byte, error)
	// gate is held by whoever uses the fields below.
	gate chan struct{}
	kept map[Q]kept
	// next is when the next search may begin.
	next time.Time
}

// kept is an answer, and when it was found.
type kept struct {
	data []byte
	at   time.Time
}

func newPaced[Q comparable](search func(context.Context, Q) ([]byte, error)) *paced[Q] {
	return &paced[Q]{search: search, gate: make(chan struct{}, 1), kept: map[Q]kept{}}
}

// get returns an answer: a fresh one if it may be searched for, otherwise the last one, otherwise it waits.
func (p *paced[Q]) get(ctx context.Context, q Q) ([]byte, error) {
	for {
		data, pause, err := p.try(ctx, q)
		if pause == 0 {
			return data, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errBusy
		}
	}
}

// try is get, but returns how long to wait instead of waiting for the end of a pause.
func (p *paced[Q]) try(ctx context.Context, q Q) (data []byte, pause time.Duration, err error) {
	select {
	case p.gate <- struct{}{}:
		defer func() { <-p.gate }()
	case <-ctx.Done():
		return nil, 0, errBusy
	}
	start := time.Now()
	last, known := p.kept[q]
	switch pause = p.next.Sub(start); {
	case known && (pause > 0 || start.Sub(last.at) < fresh):
		return last.data, 0, nil
	case pause > 0:
		return nil, pause, nil
	}
	// Others get this answer, too: it mustn't depend on whether this asker stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTime)
	defer cancel()
	data, err = p.search(ctx, q)
	end := time.Now()
	p.next = end.Add(min(share*end.Sub(start), longestPause))
	if err != nil {
		delete(p.kept, q)
		return nil, 0, err
	}
	if !known && len(p.kept) >= mostKept {
		clear(p.kept)
	}
	p.kept[q] = kept{data, end}
	return data, 0, nil
}
