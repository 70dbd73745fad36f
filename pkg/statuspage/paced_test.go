package statuspage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow answers with how many searches there were, each of which takes a time.
type slow struct {
	takes    time.Duration
	searches int
	spent    time.Duration
	err      error
}

func (s *slow) search(ctx context.Context, _ int) ([]byte, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.searches++
	s.spent += s.takes
	return fmt.Append(nil, s.searches), s.err
}

// TestManyAskersCostLittle lets a hundred ask all the time, half of them the same.
func TestManyAskersCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = time.Minute
		s := slow{takes: 100 * time.Millisecond}
		p := newPaced(s.search)
		var wg sync.WaitGroup
		for asker := range 100 {
			wg.Go(func() {
				for start := time.Now(); time.Since(start) < lasts; time.Sleep(20 * time.Millisecond) {
					ctx, cancel := context.WithTimeout(t.Context(), askTime)
					if _, err := p.get(ctx, max(0, asker-50)); err != nil && !errors.Is(err, errBusy) {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if s.spent > lasts/15 || s.spent < lasts/30 {
			t.Errorf("%v of %v went to searching, want a twentieth", s.spent, lasts)
		}
	})
}

func TestAnswersAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow{takes: 10 * time.Millisecond}
		p := newPaced(s.search)
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
		at(0, 0, "1", 0)                                 // kept
		at(0, 1, "2", share*s.takes+s.takes)             // another question has to wait for the end of the pause
		at((share+1)*s.takes, 0, "1", 0)                 // the pause is over, but it is still fresh
		at(fresh, 0, "3", s.takes)                       // and no longer
		s.takes = 3 * time.Second                        // it gets hard
		at(fresh, 0, "4", s.takes)                       //
		at(longestPause-time.Millisecond, 0, "4", 0)     // within the pause the old one has to do
		at(time.Millisecond, 0, "5", s.takes)            // the pause has an end
		at(0, 2, "6", longestPause+s.takes)              //
		s.err = errors.New("no luck")                    //
		time.Sleep(longestPause)                         //
		if _, err := p.get(t.Context(), 0); err == nil { // what fails isn't kept
			t.Error("an error isn't told")
		}
		s.err = nil
		at(0, 0, "8", longestPause+s.takes)
	})
}

// TestAnAskerWhoGoesSpoilsNothing: the answer is everybody's.
func TestAnAskerWhoGoesSpoilsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow{takes: time.Second}
		p := newPaced(s.search)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = p.get(ctx, 0) }()
		synctest.Wait()
		cancel()
		impatient, cancel := context.WithTimeout(t.Context(), s.takes/2)
		defer cancel()
		if _, err := p.get(impatient, 0); !errors.Is(err, errBusy) {
			t.Errorf("whoever can't wait is told %v", err)
		}
		if got, err := p.get(t.Context(), 0); string(got) != "1" || err != nil {
			t.Errorf("got %s, %v", got, err)
		}
	})
}
