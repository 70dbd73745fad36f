package watch

import (
	"net/http"
	"strconv"
)

// Impatient bounds how long an API server, or whatever stands before it, can have a client wait that it has refused for now (the header
// Retry-After). client-go obeys for as long as it says, without a word: after an hour of maintenance that ended early, changes of an hour
// would be missing.
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
	if seconds, err := strconv.Atoi(resp.Header.Get(header)); err == nil && seconds > longest {
		resp.Header.Set(header, strconv.Itoa(longest))
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the transport inside.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.RoundTripper }
