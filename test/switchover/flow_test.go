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

// flow is a connection, or a UDP socket that stays, on which a message goes out and its answer comes back again and again.
type flow struct {
	from  *lab.Host
	proto inet.Protocol
	to    netip.AddrPort

	conn    net.Conn
	in      *bufio.Reader
	end     context.CancelFunc
	running chan struct{} // closed when it has ended

	mu sync.Mutex
	// server is who answers.
	server string
	flowCounts
	// losses say what became of messages without an answer.
	losses []string
	// err is why a connection has ended.
	err error
}

// flowCounts is what has become of a flow's messages.
type flowCounts struct {
	// sent counts messages, lost those without an answer, moved changes of who answers.
	sent, lost, moved int
	// retransmitted counts the segments that a connection had to send again.
	retransmitted int
}

// openFlow opens a flow and exchanges a first message, so that its endpoint is known. It goes on until ctx ends.
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

// close ends the flow.
func (f *flow) close() {
	f.end()
	<-f.running
}

// String returns a flow's ends, for example "tcp client -> 10.96.0.10:80".
func (f *flow) String() string { return fmt.Sprintf("%s %s -> %s", f.proto, f.from.Name, f.to) }

// greet learns the server's name.
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

// run exchanges messages until ctx ends, or a connection is broken.
func (f *flow) run(ctx context.Context) {
	defer close(f.running)
	defer f.conn.Close() //nolint:errcheck // whether it was well is known
	next := time.Now()
	for i := 0; sleepUntil(ctx, next); i++ {
		if next = next.Add(pace); next.Before(time.Now()) {
			next = time.Now().Add(pace)
		}
		if f.proto == inet.TCP {
			// A segment that got lost is sent again after 200 ms, 400 ms and so on.
			const stuck = 5 * time.Second
			line := fmt.Sprintf("message %d\n", i)
			echo, err := f.exchange(line, stuck)
			if err == nil && echo != line {
				err = fmt.Errorf("%q came back as %q", line, echo)
			}
			if !f.noteTCP(err) {
				return
			}
			continue
		}
		f.noteUDP(f.exchange("hello\n", patience))
	}
}

// exchange sends a line and returns the next one that comes: for UDP, of which server it is.
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

// noteTCP notes an exchange; false means that the connection is broken.
func (f *flow) noteTCP(err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	if n, failed := retransmitted(f.conn.(*net.TCPConn)); failed == nil {
		f.retransmitted = n
	}
	if err != nil {
		f.lost++
		f.err = fmt.Errorf("%s with %s: %w", f, f.server, err)
	}
	return err == nil
}

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

// counts returns the flow's counts so far, and why it is broken.
func (f *flow) counts() (flowCounts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flowCounts, f.err
}

// forget returns what became of messages without an answer since the last call.
func (f *flow) forget() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	losses := f.losses
	f.losses = nil
	return losses
}

// minus returns what was counted since.
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
