package instance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Name is that of the abstract socket.
const Name = "@kube-nftproxy/instance"

const (
	// patience is how long another process may take to answer, or to stop.
	patience = 5 * time.Second
	// again is the time until a name that can't be had is tried again.
	again = time.Second
	// mostRefusals is how often a process may end the connection at once before this one passes it over.
	mostRefusals = 10
	// mostGuests bounds connections, longest the bytes of a line.
	mostGuests, longest = 64, 1 << 10
)

// Instance is this process among the others. Its methods may be called by any goroutine.
type Instance struct {
	name string
	self Record
	// Unknown is called when another process holds the name that this one can't agree with, once for each reason.
	Unknown func(error)

	granted atomic.Bool
	changed chan struct{}
	// wake has a value when this process has become ready; stopped when it has noticed that it may not serve.
	wake, stopped chan struct{}

	mu          sync.Mutex
	ready, held bool
	other       *Record
	// said is the last reason with which Unknown was called.
	said string
}

// New returns an instance that may not serve yet.
func New(name string, self Record) *Instance {
	return &Instance{
		name: name, self: self, Unknown: func(error) {}, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}, 1),
	}
}

// Ready says that this process wants to serve from now on.
func (i *Instance) Ready() {
	i.mu.Lock()
	i.ready = true
	if i.held {
		i.grant(true)
	}
	i.mu.Unlock()
	signal(i.wake)
}

// Granted reports whether this process may serve.
func (i *Instance) Granted() bool { return i.granted.Load() }

// Changed returns a channel of capacity one that has a value when Granted may have changed.
func (i *Instance) Changed() <-chan struct{} { return i.changed }

// Stopped says that this process has noticed that it may not serve, and does nothing more to the tables.
func (i *Instance) Stopped() { signal(i.stopped) }

// Alone reports whether no other process is known to have the name: the tables of an earlier one are this process's to look after.
func (i *Instance) Alone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.held || i.granted.Load()
}

// Other names the process that serves instead of this one, "" if there is none.
func (i *Instance) Other() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other == nil {
		return ""
	}
	return i.other.String()
}

// grant lets this process serve, or not; mu is held.
func (i *Instance) grant(may bool) {
	if i.granted.Swap(may) != may {
		signal(i.changed)
	}
}

// set notes who has the name: this process, which may serve then if it is ready; another one; or one that is not known.
func (i *Instance) set(held bool, other *Record) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held, i.other = held, other
	i.grant(i.ready && other == nil)
}

func (i *Instance) isReady() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ready
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is waiting already
	}
}

// Run agrees with other processes until the context ends. It is to be started in the network namespace of the calling thread.
func (i *Instance) Run(ctx context.Context) {
	for refusals := 0; ctx.Err() == nil; {
		l, err := net.Listen("unix", i.name)
		switch {
		case err == nil:
			i.hold(ctx, l)
		case errors.Is(err, unix.EADDRINUSE):
			err = i.visit(ctx)
		}
		switch {
		case err == nil:
			refusals = 0
		case errors.Is(err, errRefused) && refusals < mostRefusals:
			refusals++
			pause(ctx, again/mostRefusals) // it may be about to leave
		default:
			i.alone(err)
			pause(ctx, again)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// alone has this process serve although it can't agree with whoever has the name.
func (i *Instance) alone(err error) {
	i.set(false, nil)
	if text := err.Error(); text != i.said {
		i.said = text
		i.Unknown(err)
	}
}

// hold answers guests until it yields to one of them.
func (i *Instance) hold(ctx context.Context, l net.Listener) {
	i.said = ""
	i.set(true, nil)
	ctx, cancel := context.WithCancel(ctx)
	var guests sync.WaitGroup
	defer guests.Wait()
	defer cancel()
	defer l.Close() //nolint:errcheck // nothing is lost
	context.AfterFunc(ctx, func() { _ = l.Close() })
	claims := make(chan *guest)
	guests.Go(func() { i.accept(ctx, l, claims) })
	for {
		select {
		case <-ctx.Done():
			return
		case g := <-claims:
			if i.isReady() && !g.record.newer(i.self) {
				continue
			}
			i.yield(ctx, l, g)
			return
		}
	}
}

// accept takes guests in until the listener is closed.
func (i *Instance) accept(ctx context.Context, l net.Listener, claims chan<- *guest) {
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, mostGuests)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		select {
		case room <- struct{}{}:
			all.Go(func() {
				defer func() { <-room }()
				i.entertain(ctx, conn, claims)
			})
		default:
			_ = conn.Close()
		}
	}
}

// guest is a process that is connected to this one, which holds the name.
type guest struct {
	net.Conn
	lines  *bufio.Reader
	record Record
}

// entertain answers a guest until it leaves. What it claims is handed over, and its connection with it.
func (i *Instance) entertain(ctx context.Context, conn net.Conn, claims chan<- *guest) {
	defer func() { _ = conn.Close() }() // nothing is lost
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	g := &guest{Conn: conn, lines: bufio.NewReaderSize(conn, longest)}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if trusted(conn) != nil {
		return
	}
	for first := true; ; first = false {
		m, err := receive(g.lines)
		if err != nil {
			return
		}
		if g.record = m.Record; first && send(conn, message{Record: i.self, Ready: i.isReady()}) != nil {
			return
		}
		_ = conn.SetDeadline(time.Time{})
		if !m.Ready {
			continue
		}
		select {
		case claims <- g:
		case <-ctx.Done():
			return
		}
	}
}

// yield stops serving, frees the name for a guest, and waits until that one has it.
func (i *Instance) yield(ctx context.Context, l net.Listener, g *guest) {
	other := g.record
	select {
	case <-i.stopped: // of an earlier time
	default:
	}
	was := i.Granted()
	i.set(false, &other)
	if was {
		select {
		case <-i.stopped:
		case <-time.After(patience): // it stops before its next batch
		case <-ctx.Done():
		}
	}
	_ = l.Close()
	if send(g, message{Yours: true}) == nil {
		awaitHolder(ctx, i.name)
	}
}

// awaitHolder waits a moment for another process to take the name, so that this one does not take it back at once.
func awaitHolder(ctx context.Context, name string) {
	const step = 10 * time.Millisecond
	for begun := time.Now(); time.Since(begun) < again && ctx.Err() == nil; pause(ctx, step) {
		if conn, err := net.Dial("unix", name); err == nil {
			_ = conn.Close()
			return
		}
	}
}

var (
	errSilent  = errors.New("it does not answer")
	errRefused = errors.New("it does not agree")
)

// visit is connected to the holder of the name until that one leaves or yields. It fails where the two can't agree.
func (i *Instance) visit(ctx context.Context) error {
	conn, err := net.DialTimeout("unix", i.name, patience)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) {
			pause(ctx, again/100) // it has just left
			return nil
		}
		return fmt.Errorf("agree with another instance of this program: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = conn.Close() }() // nothing is lost
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err := trusted(conn); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	lines := bufio.NewReaderSize(conn, longest)
	ready := i.isReady()
	err = send(conn, message{Record: i.self, Ready: ready})
	m := message{}
	if err == nil {
		m, err = receive(lines)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("agree with another instance of this program: %w", errSilent)
	case err != nil:
		return fmt.Errorf("agree with another instance of this program: %w", errRefused)
	}
	holder := m.Record
	i.set(false, &holder)
	i.said = ""
	return i.wait(conn, lines, ready, i.self.newer(holder))
}

// wait waits until the holder leaves or yields, and says when this process becomes ready.
func (i *Instance) wait(conn net.Conn, lines *bufio.Reader, ready, newer bool) error {
	_ = conn.SetReadDeadline(time.Time{})
	done := make(chan error, 1)
	go func() {
		_, err := receive(lines)
		done <- err
	}()
	for claimed := false; ; {
		if ready && newer && !claimed {
			claimed = true
			_ = conn.SetReadDeadline(time.Now().Add(2 * patience)) // the holder yields, unless it hangs
		}
		select {
		case <-i.wake:
			if !ready {
				ready = true
				_ = send(conn, message{Record: i.self, Ready: true}) // where it fails, the holder has left
			}
		case err := <-done:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("agree with another instance of this program: %w", errSilent)
			}
			return nil
		}
	}
}

// trusted fails where a process of another user is at the other end: root, and this process's own user, may do all to this one anyway.
func trusted(conn net.Conn) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("the socket %s is held by a process of user %d (pid %d), which is passed over", Name, peer.Uid, peer.Pid)
	}
	return nil
}

func send(to io.Writer, m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// receive reads a line, which has a bound.
func receive(from *bufio.Reader) (m message, err error) {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(line, &m)
}
