package switchover

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pace is the time between two messages of a flow.
const pace = 50 * time.Millisecond

// flow is a TCP connection or a UDP socket that exchanges messages with a server until it is closed.
type flow struct {
	from  *lab.Host
	proto inet.Protocol
	to    netip.AddrPort

	conn    net.Conn
	in      *bufio.Reader
	end     context.CancelFunc
	running chan struct{} // closed at the end of run

	mu sync.Mutex
	// server is the name of the answering server.
	server string
	flowCounts
	// losses describe the messages without an answer, and changes of the server.
	losses []string
	// err is the reason if the connection is broken.
	err error
}

// flowCounts counts the messages of a flow.
type flowCounts struct {
	// sent counts messages, lost the messages without an answer, moved the changes of the server.
	sent, lost, moved int
	// retransmitted counts the TCP segments that the kernel sent again.
	retransmitted int
}

// openFlow opens a flow and exchanges a first message to learn the server. The flow runs until ctx ends.
func openFlow(ctx context.Context, from *lab.Host, proto inet.Protocol, to netip.AddrPort) (*flow, error) {
	f := &flow{from: from, proto: proto, to: to, running: make(chan struct{})}
	dialing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if f.conn, err = from.Dial(dialing, proto, to); err != nil {
		return nil, fmt.Errorf("open %s: %w", f, err)
	}
	f.in = bufio.NewReader(f.conn)
	f.server, err = f.greet()
	if err != nil {
		_ = f.conn.Close()
		return nil, fmt.Errorf("open %s: %w", f, err)
	}
	ctx, f.end = context.WithCancel(ctx)
	go f.run(ctx)
	return f, nil
}

// close stops the flow and waits for its end.
func (f *flow) close() {
	f.end()
	<-f.running
}

// String returns protocol, source and destination, for example "tcp client -> 10.96.0.10:80".
func (f *flow) String() string { return fmt.Sprintf("%s %s -> %s", f.proto, f.from.Name, f.to) }

// greet returns the server's name.
func (f *flow) greet() (string, error) {
	if f.proto == inet.UDP {
		return f.exchange("hello\n", patience)
	}
	if err := f.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	line, err := f.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	answer, err := lab.ParseAnswer(line)
	return answer.Server, err
}

// run exchanges messages until ctx ends or the connection is broken.
func (f *flow) run(ctx context.Context) {
	defer close(f.running)
	defer f.conn.Close() //nolint:errcheck // the result of the flow is known
	next := time.Now()
	for i := 0; sleepUntil(ctx, next); i++ {
		if next = next.Add(pace); next.Before(time.Now()) {
			next = time.Now().Add(pace)
		}
		if f.proto == inet.TCP {
			// The kernel sends a lost segment again after 200 ms, 400 ms and so on.
			const stuck = 5 * time.Second
			line := fmt.Sprintf("message %d\n", i)
			echo, err := f.exchange(line, stuck)
			if err == nil && echo != line {
				err = fmt.Errorf("sent %q, received %q", line, echo)
			}
			if !f.noteTCP(err) {
				return
			}
			continue
		}
		f.noteUDP(f.exchange("hello\n", patience))
	}
}

// exchange sends a line, and waits for the answer. It returns the answer for TCP, the server's name for UDP.
func (f *flow) exchange(line string, within time.Duration) (string, error) {
	if err := f.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := f.conn.Write([]byte(line)); err != nil {
		return "", err
	}
	answer, err := f.in.ReadString('\n')
	if err != nil || f.proto == inet.TCP {
		return answer, err
	}
	parsed, err := lab.ParseAnswer(answer)
	return parsed.Server, err
}

// noteTCP records the result of an exchange. It returns false if the connection is broken.
func (f *flow) noteTCP(err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	f.countRetransmitted()
	if err != nil {
		f.lost++
		f.err = fmt.Errorf("%s with %s: %w", f, f.server, err)
	}
	return err == nil
}

// noteUDP records the result of an exchange.
func (f *flow) noteUDP(server string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	switch {
	case err != nil:
		f.lost++
		f.losses = append(f.losses, fmt.Sprintf("%s %s: %s", time.Now().Format("05.000"), f, kindOf(err)))
	case server != f.server:
		f.moved++
		f.losses = append(f.losses, fmt.Sprintf("%s %s: %s instead of %s", time.Now().Format("05.000"), f, server, f.server))
		f.server = server
	}
}

// counts returns the flow's counts so far, and the reason if it is broken. They include the segments that the kernel
// has sent again in an exchange that is still under way.
func (f *flow) counts() (flowCounts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countRetransmitted()
	return f.flowCounts, f.err
}

// countRetransmitted reads the kernel's count, unless the connection is closed. The caller must hold mu.
func (f *flow) countRetransmitted() {
	if conn, is := f.conn.(*net.TCPConn); is {
		if n, failed := retransmitted(conn); failed == nil {
			f.retransmitted = n
		}
	}
}

// forget returns and clears the losses since the last call.
func (f *flow) forget() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	losses := f.losses
	f.losses = nil
	return losses
}

// minus returns the difference from earlier counts.
func (c flowCounts) minus(before flowCounts) flowCounts {
	return flowCounts{
		sent: c.sent - before.sent, lost: c.lost - before.lost, moved: c.moved - before.moved,
		retransmitted: c.retransmitted - before.retransmitted,
	}
}

func (c flowCounts) plus(more flowCounts) flowCounts {
	return flowCounts{
		sent: c.sent + more.sent, lost: c.lost + more.lost, moved: c.moved + more.moved,
		retransmitted: c.retransmitted + more.retransmitted,
	}
}
