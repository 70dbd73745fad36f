package health

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowPage is a page that takes time, and counts its answers.
type slowPage struct {
	takes time.Duration
	made  int
}

func (s *slowPage) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	time.Sleep(s.takes)
	s.made++
	w.Header().Set("Made", fmt.Sprint(s.made))
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprint(w, s.made)
}

func (s *slowPage) ask(h http.Handler, accept string, query ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics?"+strings.Join(query, ""), nil)
	r.Header.Set("Accept", accept)
	h.ServeHTTP(w, r)
	return w
}

// TestManyScrapesCostLittle has 200 clients that send requests continuously. Half of them use the same format, the
// others a format each.
func TestManyScrapesCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Minute
		s := &slowPage{takes: 100 * time.Millisecond}
		h := keepAnswers(s)
		var wg sync.WaitGroup
		for asker := range 200 {
			wg.Go(func() {
				for start := time.Now(); time.Since(start) < lasts; time.Sleep(300 * time.Millisecond) {
					w := s.ask(h, fmt.Sprint(max(100, asker)))
					if w.Code != http.StatusAccepted && w.Code != http.StatusServiceUnavailable {
						t.Errorf("answered %d", w.Code)
					}
				}
			})
		}
		wg.Wait()
		if most := int((lasts/share + burst + time.Minute) / s.takes); s.made > most || s.made < most/2 {
			t.Errorf("made %d answers, want at most %d, and at least half of that", s.made, most)
		}
	})
}

// TestAScrapeIsFresh: an answer is started after the request, unless this would exceed the limit.
func TestAScrapeIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowPage{takes: time.Second}
		h := keepAnswers(s)
		for n := 1; n <= 5; n++ {
			if w := s.ask(h, ""); w.Body.String() != fmt.Sprint(n) || w.Header().Get("Made") != fmt.Sprint(n) || w.Code != http.StatusAccepted {
				t.Errorf("answer %d: %d %s", n, w.Code, w.Body)
			}
		}
		for range 20 {
			s.ask(h, "")
		}
		if s.made > 6 { // beyond the burst, the limit is a tenth
			t.Errorf("made %d answers of a second each, want at most 6", s.made)
		}
		if w := s.ask(h, "", "name[]=up"); w.Body.String() == "6" {
			t.Error("a request gets the answer to another query")
		}
		time.Sleep(burst * share)
		if w := s.ask(h, ""); w.Body.String() != fmt.Sprint(s.made) || s.made < 6 {
			t.Errorf("after a pause, the answer is %s of %d", w.Body, s.made)
		}
	})
}
