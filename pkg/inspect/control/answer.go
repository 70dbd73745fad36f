package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// NotFound is the error for an object that does not exist.
type NotFound string

// Error implements error.
func (e NotFound) Error() string { return string(e) }

// AnswerTime is the time limit of an answer: a comparison of a million elements takes half a minute.
const AnswerTime = 2 * time.Minute

// Answer returns a handler that sends the result of a function of the query's parameters as JSON.
func Answer[T any](f func(context.Context, url.Values) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// The answer may take long.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(AnswerTime))
		value, err := f(r.Context(), r.URL.Query())
		if err != nil {
			code := http.StatusInternalServerError
			if errors.As(err, new(NotFound)) {
				code = http.StatusNotFound
			}
			http.Error(w, err.Error(), code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // the client has closed the connection
	}
}

// patience is the time within which a watching client must read one value.
const patience = 10 * time.Second

// Stream returns a handler that sends values as lines of JSON, until the client disconnects. subscribe begins to
// publish the values in a feed, until the context ends.
func Stream[T any](subscribe func(context.Context, *Feed[T]) error, lost func(*T, uint64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		feed := NewFeed[T]()
		if subscribe(r.Context(), feed) != nil {
			return // the client has disconnected
		}
		control := http.NewResponseController(w)
		w.Header().Set("Content-Type", "application/x-ndjson")
		e := json.NewEncoder(w)
		for {
			if control.SetWriteDeadline(time.Now().Add(patience)) != nil || control.Flush() != nil {
				return
			}
			value, missed, err := feed.Next(r.Context())
			if err != nil {
				return
			}
			if missed > 0 {
				lost(&value, missed)
			}
			if control.SetWriteDeadline(time.Now().Add(patience)) != nil || e.Encode(value) != nil {
				return
			}
		}
	}
}
