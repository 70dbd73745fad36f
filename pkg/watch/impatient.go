package watch

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Impatient limits the delay that a server can impose on clients (the header Retry-After). It adds a random delay of at
// most the same length. client-go obeys any delay exactly and without a log line. If an API server announced a
// maintenance of an hour and ended it early, the program would receive no changes for the rest of the hour. If an
// overloaded server delayed all nodes by a second, all of them would retry at the same moment.
func Impatient(next http.RoundTripper) http.RoundTripper { return impatient{next} }

type impatient struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	const header = "Retry-After"
	resp, err := i.RoundTripper.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	longest := int(pauses().Cap.Seconds())
	seconds, err := strconv.Atoi(resp.Header.Get(header))
	if err != nil || seconds <= 0 {
		return resp, nil //nolint:nilerr // there is no number of seconds
	}
	seconds = min(seconds, longest)
	resp.Header.Set(header, strconv.Itoa(seconds))
	select {
	case <-time.After(time.Duration(rand.Float64() * float64(time.Duration(seconds)*time.Second))):
	case <-r.Context().Done():
	}
	return resp, nil
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.RoundTripper }
