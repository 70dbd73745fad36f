package statuspage

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fresh is how long an answer is as good as a new one.
	fresh = 500 * time.Millisecond
	// share is how much longer than a search the pause after it is. So all askers of all pages together have a tenth of one processor,
	// however many they are, however often they ask and however long a search takes.
	share = 9
	// mostKept is how many answers of a page are kept.
	mostKept = 4
	// searchTime is how long a search may take.
	searchTime = 20 * time.Second
)

var errBusy = errors.New("find the answer: too many requests")

// gate lets one search of all pages pass at a time, with pauses.
type gate struct {
	// turn is held by whoever searches, or looks at next.
	turn chan struct{}
	// next is when the next search may begin.
	next time.Time
}

func newGate() *gate { return &gate{turn: make(chan struct{}, 1)} }

// paced searches for answers of one page, and keeps the last ones.
type paced[Q comparable] struct {
	*gate
	search func(context.Context, Q) ([]byte, error)

	mu   sync.Mutex
	kept map[Q]kept
}

// kept is an answer, and when it was found.
type kept struct {
	data []byte
	at   time.Time
}

func newPaced[Q comparable](g *gate, search func(context.Context, Q) ([]byte, error)) *paced[Q] {
	return &paced[Q]{gate: g, search: search, kept: map[Q]kept{}}
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

// last returns the last answer, if there is one.
func (p *paced[Q]) last(q Q) (last kept, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known = p.kept[q]
	return last, known
}

// keep keeps an answer, or forgets the last one where there is an error.
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

// try is get, but returns how long to wait instead of waiting for the end of a pause.
func (p *paced[Q]) try(ctx context.Context, q Q) (data []byte, pause time.Duration, err error) {
	if last, known := p.last(q); known {
		// While another search runs, the last answer has to do.
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
	// Others get this answer, too: it mustn't depend on whether this asker stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTime)
	defer cancel()
	data, err = p.search(ctx, q)
	end := time.Now()
	p.next = end.Add(share * end.Sub(start))
	p.keep(q, kept{data, end}, err)
	return data, 0, err
}
