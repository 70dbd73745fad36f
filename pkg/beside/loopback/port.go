package loopback

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// dialTimeout is the timeout for opening a connection to an endpoint (kube-proxy: localnodeportproxy).
const dialTimeout = 5 * time.Second

// acceptPause is the pause of a listener after a failed accept, for example without free file descriptors.
const acceptPause = 100 * time.Millisecond

// The values of the label reason of kubenftproxy_loopback_connections_failed_total.
const (
	// LimitOfNamespace, LimitOfNode: the Service's namespace, or all namespaces together, have too many connections and
	// listeners. Unreachable: the endpoint did not accept the connection.
	LimitOfNamespace = "limit_of_namespace"
	LimitOfNode      = "limit_of_node"
	Unreachable      = "endpoint"
)

// port is one node port with its connections.
type port struct {
	server *Server
	at     netip.AddrPort
	// cut cancels context, which resets all connections. The server calls it when the node port has no Service with
	// endpoints.
	context context.Context
	cut     context.CancelFunc
	// listener is nil while the program cannot listen, or while another instance of the program serves. owner is the
	// namespace that has its descriptor. Only Server.Run uses them.
	listener net.Listener
	owner    string

	mu     sync.Mutex
	name   model.PortName
	choice choice
}

// set sets the Service that has the node port. Established connections stay, as in kube-proxy.
func (p *port) set(c *claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = c.name
	p.choice.set(c.endpoints, c.affinity)
}

// accept accepts and serves connections until the listener is closed.
func (p *port) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(acceptPause):
			case <-p.context.Done():
				return
			}
		default:
			namespace := p.namespace()
			if lacks := p.server.enter(namespace); lacks != room.None {
				p.server.Metrics.LoopbackFailed(limitNames[lacks])
				abort(client)
				continue
			}
			go func() {
				defer p.server.leave(namespace)
				p.serve(client)
			}()
		}
	}
}

var limitNames = [...]string{room.OfNamespace: LimitOfNamespace, room.OfNode: LimitOfNode}

// namespace returns the namespace of the Service that has the node port.
func (p *port) namespace() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name.Namespace
}

// serve opens a connection to an endpoint, and moves bytes in both directions until both sides have closed their
// stream.
func (p *port) serve(client net.Conn) {
	p.mu.Lock()
	endpoint := p.choice.next(p.server.Now())
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.context, dialTimeout)
	server, err := p.server.Dial(ctx, endpoint)
	cancel()
	if err != nil {
		p.server.Metrics.LoopbackFailed(Unreachable)
		abort(client)
		return
	}
	stop := context.AfterFunc(p.context, func() { abort(client); abort(server) })
	defer stop()
	var other sync.WaitGroup
	other.Go(func() { relay(server, client) })
	relay(client, server)
	other.Wait()
	_, _ = client.Close(), server.Close() // both streams are closed
}

// relay moves bytes in one direction. At the end of the stream, it closes the stream to the other side. After a
// failure, it resets both connections.
func relay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		abort(to)
		abort(from)
		return
	}
	if c, ok := to.(*net.TCPConn); ok {
		_ = c.CloseWrite() // it fails only if the other side has closed the connection
	}
}

// abort closes a connection with a reset, so that the peer does not treat the data as complete.
func abort(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = c.Close()
}

// close stops listening. Connections stay.
func (p *port) close() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}
