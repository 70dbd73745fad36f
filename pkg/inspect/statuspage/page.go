package statuspage

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// The paths. kube-proxy's /statusz is another page.
const (
	Path         = "/status"
	dataPath     = Path + "/data"
	syncsPath    = Path + "/syncs"
	servicesPath = Path + "/services"
)

// Config has the sources of the page's data.
type Config struct {
	// Status describes the program.
	Status func(context.Context) *view.Status
	// Syncs returns the last syncs, the oldest first.
	Syncs func(context.Context) ([]view.Sync, error)
	// Services returns the Services that match a query.
	Services func(context.Context, Query) (*Found, error)
}

// Query selects a part of all Services.
type Query struct {
	// Find is a substring of namespace/name, in lower case. Wrong selects only Services that need attention.
	Find  string
	Wrong bool
	// Offset is the number of matching Services to skip, Limit the largest number to return.
	Offset, Limit int
}

// Found is the result of a query: Matching of Total Services, and a part of these. WithProblem is the number of
// Services with a problem whose names match, or -1 if it is not known yet. They precede the other ones.
type Found struct {
	Total         int            `json:"total"`
	Matching      int            `json:"matching"`
	WithProblem   int            `json:"withProblem"`
	NodeAddresses []string       `json:"nodePortAddresses"`
	Services      []view.Service `json:"-"`
	// Unread are the kinds of objects that the program has not read yet. If there are any, the other fields are
	// incomplete.
	Unread []string `json:"unread,omitempty"`
}

// Limits of a query.
const (
	defaultLimit, mostServices = 50, 50
	// longestFind is the length of a namespace and a name.
	longestFind = 63 + 1 + 253
)

//go:embed page.html
var html string

//go:embed page.css
var css string

//go:embed page.js
var js string

// Install adds the page and its data to a mux. It only serves clients on this node, including forwarded ports.
func Install(on *http.ServeMux, c Config) {
	mux := http.NewServeMux()
	on.Handle(Path, local(mux))
	on.Handle(Path+"/", local(mux))
	text := []byte(strings.NewReplacer("/*css*/", css, "/*js*/", js).Replace(html))
	policy := contentPolicy()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, _ *http.Request) {
		protect(w.Header())
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(text) // the client has closed the connection
	})
	all := newGate()
	status := newPaced(all, func(ctx context.Context, _ struct{}) (any, error) {
		s := c.Status(ctx)
		return struct {
			*view.Status
			Health string `json:"health"` // the sentence about the node's health
		}{s, s.Health()}, nil
	})
	mux.HandleFunc("GET "+dataPath, func(w http.ResponseWriter, r *http.Request) { answer(w, r, status, struct{}{}) })
	syncs := newPaced(all, func(ctx context.Context, _ struct{}) (any, error) { return c.Syncs(ctx) })
	mux.HandleFunc("GET "+syncsPath, func(w http.ResponseWriter, r *http.Request) { answer(w, r, syncs, struct{}{}) })
	services := newPaced(all, func(ctx context.Context, q Query) (any, error) {
		found, err := c.Services(ctx, q)
		if err != nil {
			return nil, err
		}
		return shorten(found, q.Offset), nil
	})
	mux.HandleFunc("GET "+servicesPath, func(w http.ResponseWriter, r *http.Request) {
		q, err := parse(r.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, r, services, q)
	})
}

// local rejects clients on other machines: the metrics port may be bound to more than loopback, for Prometheus, and not
// all its clients may see all Services. It also rejects a browser that was led here under another name (DNS rebinding).
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() || !loopbackName(r.Host) {
			const advice = "this page is for this node only: use 127.0.0.1, or kubectl port-forward"
			http.Error(w, advice, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// loopbackName reports whether the header Host is a loopback name or address.
func loopbackName(host string) bool {
	name := strings.Trim(host, "[]")
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// contentPolicy permits the page's own style and script, and requests to its origin. Trusted types prevent the script
// from turning text into elements.
func contentPolicy() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'", hash(css), hash(js))
}

// protect sets the headers that all answers have.
func protect(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// parse parses a query's parameters.
func parse(raw string) (q Query, err error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, fmt.Errorf("read the query: %w", err)
	}
	number := func(name string, or, least int) int {
		text := values.Get(name)
		if text == "" {
			return or
		}
		n, failed := strconv.Atoi(text)
		if failed != nil || n < least {
			err = fmt.Errorf("%s must be a number, %d or more", name, least)
		}
		return n
	}
	q = Query{
		Find: strings.ToLower(values.Get("find")), Wrong: values.Get("wrong") == "1",
		Offset: number("offset", 0, 0), Limit: min(number("limit", defaultLimit, 1), mostServices),
	}
	if len(q.Find) > longestFind {
		err = fmt.Errorf("find must be no longer than %d bytes", longestFind)
	}
	return q, err
}

// askTime is the longest time that a client waits for an answer.
const askTime = 10 * time.Second

// answer sends a cached or a new answer.
func answer[Q comparable](w http.ResponseWriter, r *http.Request, from *paced[Q], q Q) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	data, err := from.get(ctx, q)
	if err != nil {
		code := http.StatusInternalServerError
		if errors.Is(err, errBusy) {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, err.Error(), code)
		return
	}
	protect(w.Header())
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client has closed the connection
}
