package watch

import (
	"errors"
	"net/http"
	"testing"
)

// answering is a transport that returns one answer or error.
type answering struct {
	after string
	err   error
}

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
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
	for after, want := range map[string]string{"": "", "1": "1", "5": "5", "6": "5", "3600": "5", "Fri, 31 Dec 1999 23:59:59 GMT": "Fri, 31 Dec 1999 23:59:59 GMT"} {
		resp, err := Impatient(answering{after: after}).RoundTrip(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Retry-After"); got != want {
			t.Errorf("to wait for %q became %q, want %q", after, got, want)
		}
	}
	failure := errors.New("no")
	if _, err := Impatient(answering{err: failure}).RoundTrip(nil); !errors.Is(err, failure) {
		t.Errorf("RoundTrip() = %v, want %v", err, failure)
	}
}
