package control

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// NotFound is the error of whoever was asked for something that there isn't.
type NotFound string

// Error implements error.
func (e NotFound) Error() string { return string(e) }

// AnswerTime is how long an answer may take: a comparison of a million elements takes half a minute.
const AnswerTime = 2 * time.Minute

// Answer makes a handler of a function whose result is sent as JSON.
func Answer[T any](f func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
			return
		}
		// What is asked for may take a while to find out.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(AnswerTime))
		value, err := f(r)
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // the client has closed the connection
	}
}

func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if errors.As(err, new(NotFound)) {
		code = http.StatusNotFound
	}
	http.Error(w, err.Error(), code)
}

// patience is how long somebody who watches may take to read one value.
const patience = 10 * time.Second

// Stream makes a handler that sends values as lines of JSON, until the asker goes.
func Stream[T any](f *Feed[T], lost func(*T, uint64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
			return
		}
		reader := f.Subscribe()
		defer reader.Close()
		control := http.NewResponseController(w)
		w.Header().Set("Content-Type", "application/x-ndjson")
		e := json.NewEncoder(w)
		for {
			if control.SetWriteDeadline(time.Now().Add(patience)) != nil || control.Flush() != nil {
				return
			}
			value, missed, err := reader.Next(r.Context())
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

// Param returns a parameter of a question.
func Param(r *http.Request, name string) string {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return ""
	}
	return values.Get(name)
}
