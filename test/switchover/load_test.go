package switchover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// echoPort is the port of the servers of both protocols.
const echoPort = 8080

// patience is the timeout of an answer, long enough for a busy machine. Losses are detected independently of it: a lost datagram never
// has an answer, and a connection with a retransmitted segment counts as failed.
const patience = 3 * time.Second

// A load binds its sockets to these ports by turns. They are below the ephemeral port range. Their number is coprime to the number of
// targets, so that a combination of port and target repeats after two minutes at the earliest. Conntrack may keep the entry of an
// unanswered attempt for that long.
const (
	firstPort = 10_000
	ports     = 22_699
)

// load opens TCP connections, or sends datagrams from new sockets, at a steady rate. It does not wait for earlier attempts.
type load struct {
	host    *lab.Host
	proto   inet.Protocol
	targets []netip.AddrPort
	every   time.Duration

	// number counts the attempts of all runs.
	number int
}

// failure is a failed attempt.
type failure struct {
	at   time.Time
	to   netip.AddrPort
	kind string
}

// tally is the result of a run of a load.
type tally struct {
	mu sync.Mutex
	// made counts all attempts, servers the answered ones by the name of the server.
	made     int
	servers  map[string]int
	failures []failure
}

func (t *tally) note(at time.Time, to netip.AddrPort, server string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.made++
	if err != nil {
		t.failures = append(t.failures, failure{at, to, kindOf(err)})
		return
	}
	if t.servers == nil {
		t.servers = map[string]int{}
	}
	t.servers[server]++
}

// kinds counts the failures by their kind.
func (t *tally) kinds() map[string]int {
	out := map[string]int{}
	for _, f := range t.failures {
		out[f.kind]++
	}
	return out
}

// kindOf returns the kind of a failure.
func kindOf(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, errLost):
		return "segment lost"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return "unreachable"
	}
	return err.Error()
}

// run starts attempts until ctx ends, and waits for unfinished ones. An error means that it could not start an attempt.
func (l *load) run(ctx context.Context) (*tally, error) {
	t := &tally{}
	var underWay sync.WaitGroup
	defer underWay.Wait()
	begin := time.Now()
	err := l.host.Do(func() error {
		for i := 0; sleepUntil(ctx, begin.Add(time.Duration(i)*l.every)); i++ {
			to := l.targets[l.number%len(l.targets)]
			at := time.Now()
			socket, err := l.open(to)
			if err != nil {
				return fmt.Errorf("attempt %d to %s: %w", l.number, to, err)
			}
			l.number++
			underWay.Go(func() {
				server, err := socket.talk(l.proto)
				t.note(at, to, server, err)
			})
		}
		return nil
	})
	return t, err
}

// sleepUntil returns false if ctx ends first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// attempt is a connecting socket, or an error that connect returned.
type attempt struct {
	*os.File
	refused error
}

// open starts an attempt. The calling thread must be in the host's namespace.
func (l *load) open(to netip.AddrPort) (a attempt, err error) {
	kind, domain, level, errs := unix.SOCK_STREAM, unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR
	if l.proto == inet.UDP {
		kind = unix.SOCK_DGRAM
	}
	if to.Addr().Is6() {
		domain, level, errs = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return a, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	own := netip.AddrPortFrom(l.host.Addr(to.Addr()), uint16(firstPort+l.number%ports))
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, level, errs, 1),
		unix.Bind(fd, sockaddr(own)),
	); err != nil {
		return a, fmt.Errorf("prepare a socket at %s: %w", own, err)
	}
	if a.refused = unix.Connect(fd, sockaddr(to)); a.refused == unix.EINPROGRESS {
		// On a veth pair, a refusal mostly arrives during connect. The kernel then stores it as the socket's error.
		number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return a, err
		}
		if a.refused = nil; number != 0 {
			a.refused = unix.Errno(number)
		}
	}
	a.File = os.NewFile(uintptr(fd), "attempt")
	return a, nil
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// talk sends a line, reads the answer of a server of the lab, and closes the socket. It returns the server's name.
func (a attempt) talk(proto inet.Protocol) (string, error) {
	defer a.Close() //nolint:errcheck // the exchange is finished
	if a.refused != nil {
		return "", a.refused
	}
	if err := a.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	const request = "hello\n"
	if _, err := io.WriteString(a, request); err != nil {
		return "", err
	}
	in := bufio.NewReader(a)
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	answer, err := lab.ParseAnswer(line)
	if err != nil || proto == inet.UDP {
		return answer.Server, err
	}
	if echo, err := in.ReadString('\n'); err != nil || echo != request {
		return "", errors.Join(fmt.Errorf("echo is %q", echo), err)
	}
	if again, err := retransmitted(a); err != nil || again > 0 {
		return "", errors.Join(errLost, err)
	}
	return answer.Server, nil
}

// errLost is the failure of a connection that was established, but lost a segment.
var errLost = errors.New("segment lost")

// retransmitted returns the number of segments that the kernel sent again on a connection.
func retransmitted(conn syscall.Conn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Total_retrans)
		}
	})
	return n, errors.Join(failed, os.NewSyscallError("get TCP_INFO", err))
}
