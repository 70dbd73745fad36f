package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// DefaultTimeout is the default timeout of a probe. Without a network in between, an answer takes less than a millisecond.
const DefaultTimeout = 300 * time.Millisecond

// Outcome is the result of a probe.
type Outcome uint8

// The outcomes of a probe.
const (
	// Failed means that the probe could not be sent or understood: a source port was in use, ctx was cancelled.
	Failed Outcome = iota
	// Answered means that a server answered.
	Answered
	// Refused means a TCP reset or an ICMP error port unreachable or protocol unreachable.
	Refused
	// TimedOut means that there was no answer.
	TimedOut
	// Unreachable means an ICMP error host or network unreachable or prohibited, or no route.
	Unreachable
)

// String returns the outcome in words, for example "timed out".
func (o Outcome) String() string {
	switch o {
	case Answered:
		return "answered"
	case Refused:
		return "refused"
	case TimedOut:
		return "timed out"
	case Unreachable:
		return "unreachable"
	}
	return "failed"
}

// Answer is the result of a probe.
type Answer struct {
	Outcome Outcome
	// Server is the name of the host that answered; empty for Ping, which cannot know it.
	Server string
	// Source is the client's address and port as the server saw it.
	Source netip.AddrPort
	// Local is the server's address and port as the server saw it.
	Local netip.AddrPort
	// Port is the client's own port, from which it sent.
	Port uint16
	// RTT is the time from the first packet to the answer or the refusal.
	RTT time.Duration
	// Err is the reason why the outcome is not Answered.
	Err error
}

// String returns the answer in one line, for example "pod-0 saw 192.0.2.100:40000 at 10.244.0.10:80" or "refused".
func (a Answer) String() string {
	switch {
	case a.Outcome == Failed && a.Err != nil:
		return "failed: " + a.Err.Error()
	case a.Server == "":
		return a.Outcome.String()
	}
	return fmt.Sprintf("%s saw %s at %s", a.Server, a.Source, a.Local)
}

// ParseAnswer parses a Server's line, with or without a newline.
func ParseAnswer(line string) (Answer, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return Answer{}, fmt.Errorf("parse answer: %q has not three fields", line)
	}
	source, err := netip.ParseAddrPort(fields[1])
	if err != nil {
		return Answer{}, fmt.Errorf("parse answer: %w", err)
	}
	local, err := netip.ParseAddrPort(fields[2])
	if err != nil {
		return Answer{}, fmt.Errorf("parse answer: %w", err)
	}
	return Answer{Outcome: Answered, Server: fields[0], Source: source, Local: local}, nil
}

// AskOnce sends a datagram on an open connection to a Server, and waits for a moment for its answer.
func AskOnce(conn net.Conn) (Answer, error) {
	const soon = 300 * time.Millisecond
	if err := conn.SetDeadline(time.Now().Add(soon)); err != nil {
		return Answer{}, err
	}
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	if err != nil {
		return Answer{}, err
	}
	return ParseAnswer(string(buf[:n]))
}

// Options vary a probe; the zero value is a probe from any port that waits for DefaultTimeout.
type Options struct {
	// Timeout is the time to wait for the answer; zero means DefaultTimeout. An earlier deadline of ctx applies, too.
	Timeout time.Duration
	// Source is the source address, for hosts that have several; the zero value lets the kernel choose.
	Source netip.Addr
	// SourcePort is the source port; zero means a new one for each probe. Conntrack keeps the entry of an unanswered SYN for two
	// minutes, so a random port would sometimes match an old entry. Therefore a host's probes and connections use all 28,232 ports
	// in turn. (The kernel shuffles those of TCP every 10 s.)
	SourcePort uint16
}

// Probe sends one request from this host and returns the result: a TCP connection, a UDP datagram or an SCTP INIT. If a rule
// drops the host's own outgoing packets, the outcome is TimedOut.
func (h *Host) Probe(ctx context.Context, proto inet.Protocol, dst netip.AddrPort, o Options) Answer {
	return h.one(func() Answer { return h.probe(ctx, proto, dst, o) })
}

// Ping sends an ICMP echo request. An answer has no Server, Source or Local.
func (h *Host) Ping(ctx context.Context, dst netip.Addr, o Options) Answer {
	return h.one(func() Answer { return timed(func() Answer { return ping(ctx, dst, o) }) })
}

// one makes a probe in the host's namespace.
func (h *Host) one(f func() Answer) Answer {
	var a Answer
	if err := h.Do(func() error { a = f(); return nil }); err != nil {
		return Answer{Err: err}
	}
	return a
}

// Spread makes n probes in sequence, each from a new socket, and counts the answers by server. Other outcomes count by their
// names, "refused" or "timed out". The first Failed probe ends it with an error.
func (h *Host) Spread(ctx context.Context, proto inet.Protocol, dst netip.AddrPort, n int, o Options) (map[string]int,
	error) {
	counts := map[string]int{}
	err := h.Do(func() error {
		for i := range n {
			a := h.probe(ctx, proto, dst, o)
			switch a.Outcome {
			case Failed:
				return fmt.Errorf("probe %s %s from %s, number %d: %w", proto, dst, h.Name, i, a.Err)
			case Answered:
				counts[a.Server]++
			default:
				counts[a.Outcome.String()]++
			}
		}
		return nil
	})
	return counts, err
}

// Dial opens a TCP connection or a connected UDP socket from the host, for use by any goroutine. The caller closes it; until then
// the namespace stays. A TCP connection rejected by ICMP, as by nftables, may take a second to fail, because the kernel only
// records an answer that arrives while it is sending. Probe returns at once.
func (h *Host) Dial(ctx context.Context, proto inet.Protocol, dst netip.AddrPort) (conn net.Conn, err error) {
	if proto != inet.TCP && proto != inet.UDP {
		return nil, fmt.Errorf("dial %s from %s: %s has no connections here", dst, h.Name, proto)
	}
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	err = h.Do(func() error {
		return h.eachPort(func(port uint16) error {
			dialer.LocalAddr = &net.TCPAddr{Port: int(port)}
			if proto == inet.UDP {
				dialer.LocalAddr = &net.UDPAddr{Port: int(port)}
			}
			conn, err = dialer.DialContext(ctx, proto.String(), dst.String())
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", h.Name, err)
	}
	return conn, nil
}

// probe makes one probe; the calling thread is in the host's namespace.
func (h *Host) probe(ctx context.Context, proto inet.Protocol, dst netip.AddrPort, o Options) Answer {
	return timed(func() Answer {
		switch proto {
		case inet.TCP:
			return h.probeTCP(ctx, dst, o)
		case inet.UDP:
			return h.probeUDP(ctx, dst, o)
		case inet.SCTP:
			return h.probeSCTP(ctx, dst, o)
		}
		return Answer{Err: fmt.Errorf("probe %s: protocol %d is not known", dst, proto)}
	})
}

// timed measures the duration of a probe.
func timed(f func() Answer) Answer {
	begin := time.Now()
	a := f()
	a.RTT = time.Since(begin)
	return a
}

// open opens a probe's socket, bound according to the options.
func open(ctx context.Context, dst netip.Addr, kind, proto int, o Options) (socket, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	s := socket{ctx: ctx, deadline: time.Now().Add(o.Timeout)}
	if limit, ok := ctx.Deadline(); ok && limit.Before(s.deadline) {
		s.deadline = limit
	}
	var err error
	if s.fd, err = newSocket(dst, kind, proto); err != nil {
		return s, err
	}
	if err := s.bind(dst, o); err != nil {
		return s, errors.Join(err, unix.Close(s.fd))
	}
	return s, nil
}

// bind sets the source address and port, if given.
func (s socket) bind(dst netip.Addr, o Options) error {
	if o.SourcePort == 0 && !o.Source.IsValid() {
		return nil
	}
	if !o.Source.IsValid() {
		o.Source = netip.IPv6Unspecified()
		if dst.Is4() {
			o.Source = netip.IPv4Unspecified()
		}
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	from := netip.AddrPortFrom(o.Source, o.SourcePort)
	if err := unix.Bind(s.fd, sockaddr(from)); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}

// close closes the socket. Errors do not matter any more.
func (s socket) close() { _ = unix.Close(s.fd) }

// probeTCP connects and reads the line. It closes with a reset, so that no port stays in TIME_WAIT.
func (h *Host) probeTCP(ctx context.Context, dst netip.AddrPort, o Options) Answer {
	s, err := h.openPort(ctx, dst, unix.SOCK_STREAM, o)
	if err != nil {
		return Answer{Err: err}
	}
	defer s.close()
	if err := unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return Answer{Err: fmt.Errorf("set SO_LINGER: %w", err)}
	}
	if err := s.connect(dst); err != nil {
		return unanswered(fmt.Errorf("connect: %w", err))
	}
	line, err := s.readLine()
	if err != nil {
		return unanswered(fmt.Errorf("read line: %w", err))
	}
	if o.SourcePort != 0 {
		s.part()
	}
	return s.answered(line)
}

// part ends a connection so that its ports are reusable at once. A reset from this side may meet a server socket that is still
// sending the line. The kernel would queue a following SYN to that dying socket and lose it. So part closes its half and waits
// for the server's reset. If none arrives, close sends a reset.
func (s socket) part() {
	if unix.Shutdown(s.fd, unix.SHUT_WR) != nil {
		return
	}
	for buf := make([]byte, 64); ; {
		if n, err := s.read(buf); n == 0 || err != nil {
			return
		}
	}
}

// readLine reads up to a newline or the end of the connection.
func (s socket) readLine() ([]byte, error) {
	buf := make([]byte, 256)
	for got := 0; ; {
		n, err := s.read(buf[got:])
		if err != nil {
			return nil, err
		}
		got += n
		if n == 0 || got == len(buf) || buf[got-1] == '\n' {
			return buf[:got], nil
		}
	}
}

// probeUDP sends a datagram and reads the line.
func (h *Host) probeUDP(ctx context.Context, dst netip.AddrPort, o Options) Answer {
	s, err := h.openPort(ctx, dst, unix.SOCK_DGRAM, o)
	if err != nil {
		return Answer{Err: err}
	}
	defer s.close()
	return s.exchange(dst, []byte("?\n"), func(reply []byte) ([]byte, bool) { return reply, true })
}

// openPort opens a TCP or UDP socket. Unless a source port is given, it uses the next free one.
func (h *Host) openPort(ctx context.Context, dst netip.AddrPort, kind int, o Options) (s socket, err error) {
	if o.SourcePort != 0 {
		s, err = open(ctx, dst.Addr(), kind, 0, o)
	} else {
		err = h.eachPort(func(port uint16) error {
			o.SourcePort = port
			s, err = open(ctx, dst.Addr(), kind, 0, o)
			return err
		})
	}
	s.from = o.SourcePort
	return s, err
}

// eachPort calls open with the next ports until one is free.
func (h *Host) eachPort(open func(port uint16) error) error {
	for range portCount {
		if err := open(h.nextPort()); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("find a source port: %w", unix.EADDRINUSE)
}

// firstPort and portCount are the kernel's own range of ephemeral ports.
const (
	firstPort = 32768
	portCount = 28232
)

// nextPort returns the ports of the range in turn.
func (h *Host) nextPort() uint16 { return uint16(firstPort + (h.ports.Add(1)-1)%portCount) }

// probeSCTP sends an INIT and waits for its INIT ACK. It ignores an ABORT: a kernel with SCTP sends one, because it does not know
// the raw sockets.
func (h *Host) probeSCTP(ctx context.Context, dst netip.AddrPort, o Options) Answer {
	port := o.SourcePort
	if port == 0 {
		port = h.nextPort()
	}
	o.SourcePort = 0 // a raw socket has no port
	s, err := open(ctx, dst.Addr(), unix.SOCK_RAW, unix.IPPROTO_SCTP, o)
	if err != nil {
		return Answer{Err: err}
	}
	defer s.close()
	s.port, s.from = port, port
	init := newInit(port, dst.Port())
	return s.exchange(netip.AddrPortFrom(dst.Addr(), 0), init.bytes(), func(reply []byte) ([]byte, bool) {
		if dst.Addr().Is4() {
			reply = withoutIPv4Header(reply)
		}
		ack, ok := parseSCTP(reply)
		mine := ok && ack.chunk == sctpInitAck && ack.tag == init.own && ack.source == dst.Port() && ack.target == port
		return ack.cookie, mine
	})
}

// ping sends an echo request through a ping socket, for which the kernel sets identifier and checksum and selects the reply.
func ping(ctx context.Context, dst netip.Addr, o Options) Answer {
	proto, kind := unix.IPPROTO_ICMP, byte(8)
	if dst.Is6() {
		proto, kind = unix.IPPROTO_ICMPV6, 128
	}
	s, err := open(ctx, dst, unix.SOCK_DGRAM, proto, o)
	if err != nil {
		return Answer{Err: err}
	}
	defer s.close()
	echo := append([]byte{kind, 0, 0, 0, 0, 0, 0, 1}, binary.BigEndian.AppendUint64(nil, rand.Uint64())...)
	replied := false
	a := s.exchange(netip.AddrPortFrom(dst, 0), echo, func(reply []byte) ([]byte, bool) {
		replied = len(reply) == len(echo) && bytes.Equal(reply[8:], echo[8:])
		return nil, replied
	})
	if replied {
		return Answer{Outcome: Answered}
	}
	return a
}

// exchange sends one packet and waits for an answer, from which accept extracts the line. If a rule blocks the packet (EPERM), an
// ICMP error may follow, so exchange waits for that as well.
func (s socket) exchange(dst netip.AddrPort, packet []byte, accept func([]byte) ([]byte, bool)) Answer {
	if err := reportErrors(s.fd, dst.Addr()); err != nil {
		return Answer{Err: err}
	}
	if err := unix.Connect(s.fd, sockaddr(dst)); err != nil {
		return unanswered(err)
	}
	for {
		_, err := unix.Write(s.fd, packet)
		if err == nil || err == unix.EPERM {
			break
		}
		if s.concerns(err) {
			return unanswered(err)
		}
	}
	buf := make([]byte, 2048)
	for {
		n, err := s.read(buf)
		if err != nil && s.concerns(err) {
			return unanswered(err)
		}
		if err != nil {
			continue
		}
		if line, ok := accept(buf[:n]); ok {
			return s.answered(line)
		}
	}
}

// answered parses a server's line.
func (s socket) answered(line []byte) Answer {
	a, err := ParseAnswer(string(line))
	if err != nil {
		return Answer{Err: err}
	}
	a.Port = s.from
	return a
}

// unanswered classifies an error. ICMPv6 "prohibited" is EACCES. An unsupported protocol is ENOPROTOOPT in IPv4 and EPROTO in
// IPv6.
func unanswered(err error) Answer {
	a := Answer{Err: err}
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EPROTO):
		a.Outcome = Refused
	case errors.Is(err, unix.ETIMEDOUT):
		a.Outcome = TimedOut
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		a.Outcome = Unreachable
	}
	return a
}
