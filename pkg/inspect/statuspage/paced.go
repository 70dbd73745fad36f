package statuspage

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// fresh is the time for which an answer is as good as a new one.
	fresh = 500 * time.Millisecond
	// share is the ratio of the pause after a search to the search. So all clients of all pages together take a tenth
	// of one processor, for any number of clients, any frequency of queries and any duration of a search.
	share = 9
	// mostKept is the number of cached answers of a page.
	mostKept = 4
	// searchTime is the time limit of a search.
	searchTime = 20 * time.Second
)

var errBusy = errors.New("find the answer: too many requests")

// gate permits one search of all pages at a time, with pauses.
type gate struct {
	// turn is held by the goroutine that searches, or reads next.
	turn chan struct{}
	// next is the earliest start of the next search.
	next time.Time
}

func newGate() *gate { return &gate{turn: make(chan struct{}, 1)} }

// paced searches for answers of one page, and caches the last ones.
type paced[Q comparable] struct {
	*gate
	search func(context.Context, Q) (any, error)

	mu   sync.Mutex
	kept map[Q]kept
}

// kept is an answer as JSON, and the time of its search.
type kept struct {
	data []byte
	at   time.Time
}

func newPaced[Q comparable](g *gate, search func(context.Context, Q) (any, error)) *paced[Q] {
	return &paced[Q]{gate: g, search: search, kept: map[Q]kept{}}
}

// get returns an answer: a new one if a search is permitted, else the last one. Without a last one, it waits.
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

// last returns the last answer, if there is one.
func (p *paced[Q]) last(q Q) (last kept, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known = p.kept[q]
	return last, known
}

// keep caches an answer, or removes the last one after an error.
func (p *paced[Q]) keep(q Q, k kept, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.kept, q)
		return
	}
	if _, known := p.kept[q]; !known && len(p.kept) >= mostKept {
		clear(p.kept)
	}
	p.kept[q] = k
}

// try does the same as get, but returns the time to wait instead of waiting for the end of a pause.
func (p *paced[Q]) try(ctx context.Context, q Q) (data []byte, pause time.Duration, err error) {
	if last, known := p.last(q); known {
		// While another search runs, the last answer is used.
		select {
		case p.turn <- struct{}{}:
		default:
			return last.data, 0, nil
		}
	} else {
		select {
		case p.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, 0, errBusy
		}
	}
	defer func() { <-p.turn }()
	start := time.Now()
	last, known := p.last(q)
	switch pause = p.next.Sub(start); {
	case known && (pause > 0 || start.Sub(last.at) < fresh):
		return last.data, 0, nil
	case pause > 0:
		return nil, pause, nil
	}
	// Other clients get this answer, too, so it must not depend on this client's connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTime)
	defer cancel()
	value, err := p.search(ctx, q)
	if err == nil {
		data, err = json.Marshal(value)
	}
	end := time.Now()
	p.next = end.Add(share * end.Sub(start))
	p.keep(q, kept{data, end}, err)
	return data, 0, err
}
