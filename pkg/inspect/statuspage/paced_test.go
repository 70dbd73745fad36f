package statuspage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow answers with the number of searches so far; each takes time.
type slow struct {
	takes    time.Duration
	searches int
	spent    time.Duration
	err      error
}

func (s *slow) search(ctx context.Context, _ int) (any, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.searches++
	s.spent += s.takes
	return s.searches, s.err
}

// TestManyAskersCostLittle: 150 clients of three pages send queries continuously, some of them equal. The searches of all pages
// together take a tenth of the time, even if one takes longer than clients wait.
func TestManyAskersCostLittle(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 12 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			lasts, began := 600*takes, time.Now()
			s, all := slow{takes: takes}, newGate()
			pages := []*paced[int]{newPaced(all, s.search), newPaced(all, s.search), newPaced(all, s.search)}
			var wg sync.WaitGroup
			for asker := range 150 {
				wg.Go(func() {
					for start := time.Now(); time.Since(start) < lasts; time.Sleep(max(20*time.Millisecond, takes/5)) {
						ctx, cancel := context.WithTimeout(t.Context(), askTime)
						if _, err := pages[asker%3].get(ctx, max(0, asker-50)); err != nil && !errors.Is(err, errBusy) {
							t.Error(err)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			lasts = time.Since(began) // the last clients have waited
			if most := int(lasts/takes)/(share+1) + 2; s.searches > most || s.searches < most/2 {
				t.Errorf("%d searches of %v each in %v, want at most %d, and half of that", s.searches, takes, lasts, most)
			}
		})
	}
}

func TestAnswersAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow{takes: 10 * time.Millisecond}
		p := newPaced(newGate(), s.search)
		at := func(wait time.Duration, q int, want string, took time.Duration) {
			t.Helper()
			time.Sleep(wait)
			start := time.Now()
			got, err := p.get(t.Context(), q)
			if string(got) != want || err != nil || time.Since(start) != took {
				t.Errorf("got %s, %v after %v; want %s after %v", got, err, time.Since(start), want, took)
			}
		}
		at(0, 0, "1", s.takes)
		at(0, 0, "1", 0)                                 // cached
		at(0, 1, "2", share*s.takes+s.takes)             // another query has to wait for the end of the pause
		at((share+1)*s.takes, 0, "1", 0)                 // the pause is over, but the answer is still fresh
		at(fresh, 0, "3", s.takes)                       // no longer fresh
		s.takes = 3 * time.Second                        // searches become slow
		at(fresh, 0, "4", s.takes)                       //
		at(share*s.takes-time.Millisecond, 0, "4", 0)    // within the pause, the old answer is used
		at(time.Millisecond, 0, "5", s.takes)            // the pause is over
		at(0, 2, "6", share*s.takes+s.takes)             //
		s.err = errors.New("no luck")                    //
		time.Sleep(share * s.takes)                      //
		if _, err := p.get(t.Context(), 0); err == nil { // errors are not cached
			t.Error("an error isn't returned")
		}
		s.err = nil
		at(0, 0, "8", share*s.takes+s.takes)
	})
}

// TestAPageIsShownWhileAnotherIsSearchedFor: a cached answer does not wait.
func TestAPageIsShownWhileAnotherIsSearchedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all := slow{takes: time.Second}, newGate()
		one, other := newPaced(all, s.search), newPaced(all, s.search)
		if _, err := one.get(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(share * s.takes)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _ = other.get(t.Context(), 0) })
		synctest.Wait()
		start := time.Now()
		if got, err := one.get(t.Context(), 0); string(got) != "1" || err != nil || time.Since(start) != 0 {
			t.Errorf("got %s, %v after %v", got, err, time.Since(start))
		}
	})
}

// TestAClientMayDisconnect: the answer of a client that disconnects serves all others.
func TestAClientMayDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow{takes: time.Second}
		p := newPaced(newGate(), s.search)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = p.get(ctx, 0) }()
		synctest.Wait()
		cancel()
		impatient, cancel := context.WithTimeout(t.Context(), s.takes/2)
		defer cancel()
		if _, err := p.get(impatient, 0); !errors.Is(err, errBusy) {
			t.Errorf("a client that can't wait gets %v", err)
		}
		if got, err := p.get(t.Context(), 0); string(got) != "1" || err != nil {
			t.Errorf("got %s, %v", got, err)
		}
	})
}
