package health

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
)

// Limits of a server. Any client that reaches the node can use the health ports.
const (
	// askTime is the limit for reading a request with its body. answerTime is the limit for the answer, from the end
	// of the request's header. For a profile (net/http/pprof), the limit is the requested duration plus answerTime.
	askTime, answerTime = 10 * time.Second, 30 * time.Second
	// idleTime is the time that an idle connection is kept.
	idleTime = 2 * time.Minute
	// longestHeader and longestBody are in bytes. Requests need only a few hundred bytes.
	longestHeader, longestBody = 16 << 10, 64 << 10
)

// bounded returns a server that clients cannot exhaust by slow or idle connections, large requests, or many
// connections.
func bounded(handler http.Handler, c *crowd) *http.Server {
	return &http.Server{
		Handler:        http.MaxBytesHandler(handler, longestBody),
		ReadTimeout:    askTime,
		WriteTimeout:   answerTime,
		IdleTimeout:    idleTime,
		MaxHeaderBytes: longestHeader,
		ConnState:      c.follow,
		ErrorLog:       klog.NewStandardLogger("WARNING"),
	}
}

// The limit of open connections of one server, and of all health check node ports together, is that of
// [descriptors.Clients].

// Bounded returns a server with the limits of this file, for sockets of other packages. A handler that needs more
// time calls [http.ResponseController.SetWriteDeadline].
func Bounded(handler http.Handler) *http.Server {
	return bounded(handler, newCrowd(descriptors.Clients()))
}

// crowd limits the number of connections. Above the limit, it closes the oldest connection, so that a new client is
// always served. Connections of probes are short, so the oldest connection most likely belongs to a client that holds
// it on purpose.
type crowd struct {
	most int

	mu     sync.Mutex
	oldest list.List
	places map[net.Conn]*list.Element
}

func newCrowd(most int) *crowd { return &crowd{most: most, places: map[net.Conn]*list.Element{}} }

// follow implements http.Server.ConnState.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if tooMany := c.enter(conn); tooMany != nil {
			_ = tooMany.Close() // its server calls follow with StateClosed
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	}
}

// enter adds a connection. Above the limit, it removes and returns the oldest one.
func (c *crowd) enter(conn net.Conn) (tooMany net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[conn] = c.oldest.PushBack(conn)
	if c.oldest.Len() <= c.most {
		return nil
	}
	tooMany = c.oldest.Remove(c.oldest.Front()).(net.Conn)
	delete(c.places, tooMany)
	return tooMany
}

func (c *crowd) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if place, in := c.places[conn]; in {
		c.oldest.Remove(place)
		delete(c.places, conn)
	}
}
