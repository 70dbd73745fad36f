package health

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"time"
)

const (
	// burst is the time that answers may take at once. In the long run, they may take 1/share of the time. The time
	// of an answer is the duration of its handler, an upper bound of its processor time.
	burst = 5 * time.Second
	share = 10
	// mostKept is the largest number of kept answers, one for each combination of format, encoding and query.
	// Prometheus servers request two formats.
	mostKept = 4
	// longestWait is the longest time that a client waits for an answer.
	longestWait = askTime
)

// keptAnswers limits the cost of all requests to a handler. It makes one answer at a time. This answer serves all
// requests that arrived before its start. Answers may take a burst of time, and then a tenth of the time. Above that,
// keptAnswers sends the last answer again, or lets the client wait if there is none.
type keptAnswers struct {
	from http.Handler
	// turn is a lock for the fields below.
	turn    chan struct{}
	answers map[string]*keptAnswer
	// credit is the time that answers may still take. paid is the time at which credit was last increased.
	credit time.Duration
	paid   time.Time
}

// keptAnswer is an answer and the time of its start.
type keptAnswer struct {
	begun  time.Time
	header http.Header
	code   int
	body   bytes.Buffer
}

func keepAnswers(from http.Handler) *keptAnswers {
	return &keptAnswers{from: from, turn: make(chan struct{}, 1), answers: map[string]*keptAnswer{}, credit: burst,
		paid: time.Now()}
}

// ServeHTTP implements http.Handler.
func (k *keptAnswers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := k.await(r)
	if a == nil {
		http.Error(w, "too many requests", http.StatusServiceUnavailable)
		return
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body.Bytes()) // an error means that the client has closed the connection
}

// await returns an answer for a request, or nil if there is none within the longest wait.
func (k *keptAnswers) await(r *http.Request) *keptAnswer {
	late := time.After(longestWait)
	for asked := time.Now(); ; {
		select {
		case k.turn <- struct{}{}:
		case <-late:
			return nil
		}
		a, pause := k.answer(r, asked)
		if <-k.turn; a != nil {
			return a
		}
		select {
		case <-time.After(pause):
		case <-late:
			return nil
		}
	}
}

// answer returns an answer for a request that arrived at the time asked, or nil and the time to wait before the next
// attempt.
func (k *keptAnswers) answer(r *http.Request, asked time.Time) (*keptAnswer, time.Duration) {
	form := r.Header.Get("Accept") + "\n" + r.Header.Get("Accept-Encoding") + "\n" + r.URL.RawQuery
	last := k.answers[form]
	if last != nil && !last.begun.Before(asked) {
		return last, 0
	}
	begun := time.Now()
	k.credit, k.paid = min(burst, k.credit+begun.Sub(k.paid)/share), begun
	if k.credit <= 0 {
		return last, time.Millisecond - k.credit*share
	}
	made := &keptAnswer{begun: begun, header: http.Header{}, code: http.StatusOK}
	// Other clients get this answer too, even if this client disconnects.
	k.from.ServeHTTP(made, r.Clone(context.WithoutCancel(r.Context())))
	k.credit -= time.Since(begun)
	if last == nil && len(k.answers) >= mostKept {
		clear(k.answers)
	}
	k.answers[form] = made
	return made, 0
}

// Header implements http.ResponseWriter.
func (a *keptAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *keptAnswer) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *keptAnswer) Write(data []byte) (int, error) { return a.body.Write(data) }
