package watch

import (
	"net/http"
	"strconv"
)

// Impatient limits the delay that an API server or a proxy before it can impose on clients (the header Retry-After). client-go
// obeys any delay without a log line. For example, if the server announces a maintenance of an hour and ends it early, the program
// would receive no changes for the rest of the hour.
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

// WrappedRoundTripper gives client-go access to the inner transport.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.RoundTripper }
