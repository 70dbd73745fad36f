package twin

import (
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Forwarder makes a server of this process's own namespace available at the same loopback address on a lab's host.
type Forwarder struct {
	listener net.Listener
	server   string
	beside   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Forward makes the server reachable from the host until the Forwarder is closed.
func Forward(h *lab.Host, server netip.AddrPort) (*Forwarder, error) {
	f := &Forwarder{server: server.String(), conns: map[net.Conn]struct{}{}}
	err := h.Do(func() (err error) {
		f.listener, err = net.Listen("tcp", f.server)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.beside.Go(f.accept)
	return f, nil
}

// accept connects each client until the listener is closed.
func (f *Forwarder) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.beside.Go(func() { f.connect(client) })
	}
}

// connect copies bytes both ways until either side closes: TLS detects truncation.
func (f *Forwarder) connect(client net.Conn) {
	defer f.drop(client)
	if !f.keep(client) {
		return
	}
	server, err := net.Dial("tcp", f.server)
	if err != nil {
		return // the client's connection closes, as if the server were gone
	}
	defer f.drop(server)
	if !f.keep(server) {
		return
	}
	f.beside.Go(func() {
		_, _ = io.Copy(server, client) // the result does not matter
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
}

// keep records a connection so that Close can close it. It returns false after Close.
func (f *Forwarder) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = struct{}{}
	return !f.closed
}

func (f *Forwarder) drop(c net.Conn) {
	_ = c.Close() // perhaps a second time
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

// Close ends all connections and waits for their goroutines.
func (f *Forwarder) Close() error {
	err := f.listener.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.beside.Wait()
	return err
}
