package watch

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fixedAnswer is a transport that always returns the same answer or error.
type fixedAnswer struct {
	after string
	err   error
}

func (a fixedAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	h := http.Header{}
	if a.after != "" {
		h.Set("Retry-After", a.after)
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: h}, nil
}

func TestRetryAfterIsBounded(t *testing.T) {
	synctest.Test(t, testRetryAfter)
}

func testRetryAfter(t *testing.T) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.10", nil)
	lab.Must(t, err)
	for after, want := range map[string]string{"": "", "1": "1", "5": "5", "6": "5", "3600": "5", "Fri, 31 Dec 1999 23:59:59 GMT": "Fri, 31 Dec 1999 23:59:59 GMT"} {
		start := time.Now()
		resp, err := Impatient(fixedAnswer{after: after}).RoundTrip(request)
		lab.Must(t, err)
		if seconds, _ := strconv.Atoi(want); time.Since(start) > time.Duration(seconds)*time.Second {
			t.Errorf("with %q, the answer took %v", after, time.Since(start))
		}
		lab.Same(t, want, resp.Header.Get("Retry-After"), "Retry-After %q became", after)
	}
	failure := errors.New("no")
	if _, err := Impatient(fixedAnswer{err: failure}).RoundTrip(request); !errors.Is(err, failure) {
		t.Errorf("RoundTrip() = %v, want %v", err, failure)
	}
}

// Clients that an overloaded server delays at one moment retry at different times.
func TestRetriesAfterOverloadAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.10", nil)
		lab.Must(t, err)
		const nodes = 100
		early := 0
		for range nodes {
			start := time.Now()
			lab.Must(t, lab.Err(Impatient(fixedAnswer{after: "1"}).RoundTrip(request)))
			if time.Since(start) < time.Second/2 {
				early++
			}
		}
		if early < nodes/5 || early > nodes*4/5 {
			t.Errorf("%d of %d clients retry in the first half of the spread", early, nodes)
		}
	})
}
