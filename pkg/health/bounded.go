package health

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// What an asker can have of a server. Those of the health ports are anybody who reaches the node.
const (
	// askTime is how long a question may take, with its body; answerTime is how long the answer may, from when its header was read.
	// Profiles, which run for as long as the asker wants, get that time in addition.
	askTime, answerTime = 10 * time.Second, 30 * time.Second
	// idleTime is how long a connection is kept for the next question.
	idleTime = 2 * time.Minute
	// longestHeader and longestBody are in bytes; nothing that is served needs more than a few hundred.
	longestHeader, longestBody = 16 << 10, 64 << 10
	// mostConnections is how many there may be at a server, and at all health check node ports together.
	mostConnections = 512
)

// bounded returns a server that no asker can fill up: neither by saying or reading nothing, or slowly, nor with much, nor with many
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

// Bounded returns a server with the limits of all our servers, for other sockets than the health ports. A handler that needs more time
// for its answer says so ([http.ResponseController.SetWriteDeadline]).
func Bounded(handler http.Handler) *http.Server { return bounded(handler, newCrowd(mostConnections)) }

// crowd closes the oldest connection when there are too many. So whoever comes last is heard: a probe takes a moment, and those who
// hold connections on purpose are older.
type crowd struct {
	most int

	mu     sync.Mutex
	oldest list.List
	places map[net.Conn]*list.Element
}

func newCrowd(most int) *crowd { return &crowd{most: most, places: map[net.Conn]*list.Element{}} }

// follow is told what becomes of each connection (http.Server.ConnState).
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if tooMany := c.enter(conn); tooMany != nil {
			_ = tooMany.Close() // its server notices, and says StateClosed
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	}
}

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
