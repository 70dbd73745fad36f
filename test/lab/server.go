package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// farewell is the time for which a server waits for its client to close first; some clients, such as nc, never do.
const farewell = 200 * time.Millisecond

// Server answers on one port of a Host, on all of the host's addresses, with one line per connection or datagram:
//
//	<host name> <client's address:port as seen> <own address:port as seen>
type Server struct {
	// Host is the server's host.
	Host *Host
	// Proto and Port are the server's protocol and port.
	Proto inet.Protocol
	Port  uint16

	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	open    map[io.Closer]struct{}
}

// Serve starts a server that sends the line and closes the connection (TCP), answers each datagram with the line (UDP), or
// answers each INIT with an INIT ACK whose state cookie is the line (SCTP). Close, also of the lab, stops it. A TCP client that
// closes its half first gets a reset after the line, otherwise the server closes after 200 ms. A port in use is an error, except
// for SCTP, where a host's servers share the packets. While a host has an SCTP server, its other SCTP ports do not reject
// packets.
func (h *Host) Serve(proto inet.Protocol, port uint16) (*Server, error) {
	switch proto {
	case inet.TCP:
		return h.listen(proto, port, h.listenTCP(func(conn net.Conn) {}))
	case inet.UDP:
		return h.listen(proto, port, h.listenPackets(unix.SOCK_DGRAM, answerUDP))
	case inet.SCTP:
		return h.listen(proto, port, h.listenPackets(unix.SOCK_RAW, answerSCTP))
	}
	return nil, fmt.Errorf("serve on %s: protocol %d is not known", h.Name, proto)
}

// ServeEcho starts a TCP server that sends the line and then returns each further line that it receives, until the client closes.
// It shows whether an established connection still works.
func (h *Host) ServeEcho(port uint16) (*Server, error) {
	return h.listen(inet.TCP, port, h.listenTCP(echo))
}

// starter opens a server's sockets of one family and starts to serve, in the namespace.
type starter func(s *Server, family netip.Addr) error

// listen starts a server for both families.
func (h *Host) listen(proto inet.Protocol, port uint16, start starter) (*Server, error) {
	if port == 0 {
		return nil, fmt.Errorf("serve %s on %s: port must not be zero", proto, h.Name)
	}
	s := &Server{Host: h, Proto: proto, Port: port, open: map[io.Closer]struct{}{}}
	err := h.Do(func() error {
		return errors.Join(start(s, netip.IPv4Unspecified()), start(s, netip.IPv6Unspecified()))
	})
	if err == nil && !h.lab.adopt(s) {
		err = os.ErrClosed
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve %s port %d on %s: %w", proto, port, h.Name, err), s.Close())
	}
	return s, nil
}

// Close stops the server, ends its connections and waits for its goroutines. It may be called again.
func (s *Server) Close() error {
	s.Host.lab.disown(s)
	s.mu.Lock()
	s.closed = true
	open := s.open
	s.open = nil
	s.mu.Unlock()
	var errs []error
	for c := range open {
		if err := c.Close(); !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	s.running.Wait()
	return errors.Join(errs...)
}

// run serves c in a goroutine, until f returns or Close closes c. If the server is closed already, it closes c at once.
func (s *Server) run(c io.Closer, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close() // it is unused
		return
	}
	s.open[c] = struct{}{}
	s.running.Go(func() {
		f()
		_ = c.Close() // c may be closed already
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c)
	})
}

// line returns a server's answer.
func (s *Server) line(client, own netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %s %s\n", s.Host.Name, client, own)
}

// listenTCP serves connections: it sends the line, then calls talk.
func (h *Host) listenTCP(talk func(net.Conn)) starter {
	return func(s *Server, family netip.Addr) error {
		network := "tcp6"
		if family.Is4() {
			network = "tcp4"
		}
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		listener, err := config.Listen(context.Background(), network, netip.AddrPortFrom(family, s.Port).String())
		if err != nil {
			return err
		}
		s.run(listener, func() { s.accept(listener, talk) })
		return nil
	}
}

// accept serves each connection in its own goroutine.
func (s *Server) accept(listener net.Listener, talk func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		s.run(conn, func() { s.greet(conn.(*net.TCPConn), talk) })
	}
}

// greet sends the line, calls talk, and lets the client close first. It answers such a client with a reset: the kernel deletes
// the connection before it sends that, so the client may use the same ports again at once, and none stays in TIME_WAIT.
func (s *Server) greet(conn *net.TCPConn, talk func(net.Conn)) {
	client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	own := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	if _, err := conn.Write(s.line(client, own)); err != nil {
		return
	}
	talk(conn)
	if conn.SetReadDeadline(time.Now().Add(farewell)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, conn); err == nil {
		_ = conn.SetLinger(0) // fails on a closed connection, which is as good
	}
}

// echo returns each line.
func echo(conn net.Conn) {
	for in := bufio.NewScanner(conn); in.Scan(); {
		if _, err := conn.Write(append(in.Bytes(), '\n')); err != nil {
			return
		}
	}
}

// request is a received datagram.
type request struct {
	data        []byte
	client, own netip.AddrPort
}

// answerer returns the answer to a datagram, or nil.
type answerer func(*Server, request) []byte

// answerUDP answers everything.
func answerUDP(s *Server, r request) []byte {
	return s.line(r.client, netip.AddrPortFrom(r.own.Addr(), s.Port))
}

// answerSCTP answers INITs to the server's port.
func answerSCTP(s *Server, r request) []byte {
	if r.client.Addr().Is4() {
		r.data = withoutIPv4Header(r.data)
	}
	init, ok := parseSCTP(r.data)
	if !ok || init.chunk != sctpInit || init.target != s.Port {
		return nil
	}
	client := netip.AddrPortFrom(r.client.Addr(), init.source)
	return init.answer(s.line(client, netip.AddrPortFrom(r.own.Addr(), s.Port))).bytes()
}

// listenPackets serves datagrams of UDP, or raw packets of SCTP.
func (h *Host) listenPackets(kind int, answer answerer) starter {
	return func(s *Server, family netip.Addr) error {
		fd, err := newSocket(family, kind, int(s.Proto))
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), s.Proto.String())
		raw, err := file.SyscallConn()
		if err == nil {
			err = bindPackets(fd, kind, netip.AddrPortFrom(family, s.Port))
		}
		if err != nil {
			return errors.Join(err, file.Close())
		}
		s.run(file, func() { s.serve(packets{raw}, answer) })
		return nil
	}
}

// bindPackets binds the socket of one family and enables control messages with the destination of each packet. A raw socket has
// only one family, and rejects the option for that.
func bindPackets(fd, kind int, to netip.AddrPort) error {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if to.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	if to.Addr().Is6() && kind != unix.SOCK_RAW {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("set IPV6_V6ONLY: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fmt.Errorf("ask for packet information: %w", err)
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(to)))
}

// serve answers until the socket is closed. An ICMP error, for example from a client that has closed its socket, does not stop
// it.
func (s *Server) serve(p packets, answer answerer) {
	buf := make([]byte, 2048)
	for {
		r, err := p.receive(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if reply := answer(s, r); reply != nil {
			_ = p.send(reply, r) // the client notices a lost answer
		}
	}
}

// packets is a datagram or raw socket that the runtime polls.
type packets struct {
	raw interface {
		Read(func(fd uintptr) bool) error
	}
}

// receive waits for a packet. Its errors are os.ErrClosed or those of the system call.
func (p packets) receive(buf []byte) (request, error) {
	var r request
	var failed error
	oob := make([]byte, 128)
	closed := p.raw.Read(func(fd uintptr) bool {
		n, m, _, from, err := unix.Recvmsg(int(fd), buf, oob, 0)
		if err == unix.EAGAIN || err == unix.EINTR {
			return false
		}
		if failed = err; err != nil {
			return true
		}
		var own netip.Addr
		own, failed = localAddr(oob[:m])
		r = request{buf[:n], addrPort(from), netip.AddrPortFrom(own, 0)}
		return true
	})
	if closed != nil {
		return r, os.ErrClosed
	}
	return r, failed
}

// send sends the answer from the address that the request was sent to. A full send buffer drops it.
func (p packets) send(reply []byte, to request) error {
	var failed error
	err := p.raw.Read(func(fd uintptr) bool {
		failed = unix.Sendmsg(int(fd), reply, packetInfo(to.own.Addr()), sockaddr(to.client), 0)
		return true
	})
	return errors.Join(err, failed)
}
