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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the name of the abstract socket of the default instance.
const Name = "@kube-nftproxy/instance"

// NameOf returns the name of the abstract socket of the instances with a service-proxy name, which is empty for the
// default instance. Instances with different names don't wait for each other.
func NameOf(serviceProxyName string) string {
	if serviceProxyName == "" {
		return Name
	}
	return Name + "/" + serviceProxyName
}

const (
	// patience is the time for another process to answer or to stop.
	patience = 5 * time.Second
	// again is the time between two attempts to get the name.
	again = time.Second
	// mostRefusals is the number of connections that a holder may close at once before this process ignores it.
	mostRefusals = 10
	// mostGuests limits connections, longest the bytes of a line.
	mostGuests, longest = 64, 1 << 10
)

// Instance is this process among others. Its methods are safe for concurrent use.
type Instance struct {
	name string
	// Unknown is called when this process cannot agree with another one, once for each reason.
	Unknown func(error)

	granted atomic.Bool
	changed chan struct{}
	// wake has a value when this process has become ready, stopped when it has stopped serving.
	wake, stopped chan struct{}

	mu          sync.Mutex
	self        Record
	ready, held bool
	other       *Record
	// guests are the processes that are connected to this one, the holder.
	guests map[*guest]Record
	// said is the last reason passed to Unknown, or "" if this process communicates with the holder or is it.
	said string
	// refused is done after the first claim without a proof.
	refused sync.Once
}

// New returns an instance that may not serve yet.
func New(name string, self Record) *Instance {
	return &Instance{
		name: name, self: self, Unknown: func(error) {}, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}, 1), guests: map[*guest]Record{},
	}
}

// Ready announces that this process can serve.
func (i *Instance) Ready() {
	i.mu.Lock()
	i.ready = true
	if i.held {
		i.grant(true)
	}
	i.mu.Unlock()
	signal(i.wake)
}

// Reclaim lets this process serve again, as the newest one, because the process that serves does not work. It returns
// false, and changes nothing, if this process is not ready or serves already.
func (i *Instance) Reclaim() bool {
	i.mu.Lock()
	if i.granted.Load() || !i.ready {
		i.mu.Unlock()
		return false
	}
	i.self.Started, i.other = sinceBoot(), nil
	i.grant(true)
	i.mu.Unlock()
	signal(i.wake) // claims the name
	return true
}

// Granted reports whether this process may serve.
func (i *Instance) Granted() bool { return i.granted.Load() }

// Changed returns a channel of capacity one that has a value when Granted may have changed.
func (i *Instance) Changed() <-chan struct{} { return i.changed }

// Stopped confirms that this process does not change the tables until it is granted again.
func (i *Instance) Stopped() { signal(i.stopped) }

// Alone reports whether no other process is known: this process is responsible for the tables of an earlier one.
func (i *Instance) Alone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.held || i.granted.Load()
}

// Other names the process that serves instead of this one, or "".
func (i *Instance) Other() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other == nil {
		return ""
	}
	return i.other.String()
}

// Guests names the older processes that stand by for this one, and the newer ones that will replace it as soon as
// they are ready. Both are sorted.
func (i *Instance) Guests() (older, newer []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range i.guests {
		if r.newer(i.self) {
			newer = append(newer, r.String())
		} else {
			older = append(older, r.String())
		}
	}
	slices.Sort(older)
	slices.Sort(newer)
	return older, newer
}

// Unreachable returns the reason why this process cannot communicate with the one that holds the name, or "".
func (i *Instance) Unreachable() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.said
}

// setGuest records a guest, or forgets it if it has disconnected.
func (i *Instance) setGuest(g *guest, connected bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if connected {
		i.guests[g] = g.record
	} else {
		delete(i.guests, g)
	}
}

// setSaid sets the reason why this process cannot communicate with the holder, and reports whether it is a new one.
func (i *Instance) setSaid(reason string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	changed := i.said != reason
	i.said = reason
	return changed
}

// grant sets whether this process may serve. The caller holds mu.
func (i *Instance) grant(may bool) {
	if i.granted.Swap(may) != may {
		signal(i.changed)
	}
}

// set records the holder of the name: this process, which may serve if it is ready, another one, or an unknown one.
func (i *Instance) set(held bool, other *Record) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held, i.other = held, other
	i.grant(i.ready && other == nil)
}

// own returns the message about this process.
func (i *Instance) own(c challenge) message {
	i.mu.Lock()
	defer i.mu.Unlock()
	return message{Record: i.self, Ready: i.ready, challenge: c}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}

// Run negotiates with other processes until the context ends, in the network namespace of the calling thread.
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
			pause(ctx, again/mostRefusals) // it may be about to exit
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

// alone lets this process serve although it cannot communicate with the holder.
func (i *Instance) alone(err error) {
	i.set(false, nil)
	if i.setSaid(err.Error()) {
		i.Unknown(err)
	}
}

// hold answers guests until it yields to one of them.
func (i *Instance) hold(ctx context.Context, l net.Listener) {
	i.setSaid("")
	i.set(true, nil)
	ctx, cancel := context.WithCancel(ctx)
	var guests sync.WaitGroup
	defer guests.Wait()
	defer cancel()
	defer l.Close() //nolint:errcheck // nothing is lost
	context.AfterFunc(ctx, func() { _ = l.Close() })
	claims := make(chan claim)
	guests.Go(func() { i.accept(ctx, l, claims) })
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-claims:
			if own := i.own(challenge{}); own.Ready && !c.record.newer(own.Record) {
				continue
			}
			i.yield(ctx, l, c)
			return
		}
	}
}

// accept accepts guests until the listener is closed.
func (i *Instance) accept(ctx context.Context, l net.Listener, claims chan<- claim) {
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

// guest is a process connected to this one, the holder.
type guest struct {
	net.Conn
	lines  *bufio.Reader
	record Record
}

// claim is the wish of a guest to have the name. The goroutine of the guest does not change it.
type claim struct {
	net.Conn
	record Record
}

// entertain answers a guest until it disconnects or claims the name. A claim passes on the connection.
func (i *Instance) entertain(ctx context.Context, conn net.Conn, claims chan<- claim) {
	defer func() { _ = conn.Close() }() // nothing is lost
	g := &guest{Conn: conn, lines: bufio.NewReaderSize(conn, longest)}
	defer i.setGuest(g, false)
	_ = conn.SetDeadline(time.Now().Add(patience))
	if trusted(conn) != nil {
		return
	}
	v, err := newVerifier()
	if err != nil {
		return
	}
	defer v.close()
	stop := context.AfterFunc(ctx, func() {
		_ = conn.Close()
		v.close()
	})
	defer stop()
	m, err := receive(g.lines)
	if err != nil || m.prove(i.name) != nil || send(conn, i.own(v.challenge)) != nil || m.ID == "" {
		return
	}
	if err := v.verify(i.name); err != nil {
		if m.Ready && m.newer(i.own(challenge{}).Record) && ctx.Err() == nil {
			i.refused.Do(func() {
				i.Unknown(fmt.Errorf("a process claims to be a newer instance of this program: %w", err))
			})
		}
		return
	}
	_ = conn.SetDeadline(time.Time{})
	for ; err == nil; m, err = receive(g.lines) {
		g.record = m.Record
		if i.setGuest(g, true); !m.Ready {
			continue
		}
		select {
		case claims <- claim{conn, g.record}:
		case <-ctx.Done():
			return
		}
	}
}

// yield stops serving, releases the name for a guest, and waits until the guest has it.
func (i *Instance) yield(ctx context.Context, l net.Listener, c claim) {
	other := c.record
	select {
	case <-i.stopped: // of an earlier yield
	default:
	}
	granted := i.Granted()
	i.set(false, &other)
	if granted {
		select {
		case <-i.stopped:
		case <-time.After(patience): // it stops before its next batch
		case <-ctx.Done():
		}
	}
	_ = l.Close()
	if send(c, message{Yours: true}) == nil {
		awaitHolder(ctx, i.name)
	}
}

// awaitHolder waits briefly for another process to get the name, so that this one does not take it back at once.
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

// visit is connected to the holder until the holder exits or yields. It fails if they cannot communicate.
func (i *Instance) visit(ctx context.Context) error {
	conn, err := net.DialTimeout("unix", i.name, patience)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) {
			pause(ctx, again/100) // the holder has just exited
			return nil
		}
		return fmt.Errorf("agree with another instance of this program: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = conn.Close() }() // nothing is lost
	if err := trusted(conn); err != nil {
		return err
	}
	v, err := newVerifier()
	if err != nil {
		return fmt.Errorf("agree with another instance of this program: %w", err)
	}
	defer v.close()
	context.AfterFunc(ctx, func() {
		_ = conn.Close()
		v.close()
	})
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	lines := bufio.NewReaderSize(conn, longest)
	own := i.own(v.challenge)
	err = send(conn, own)
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
	err = v.verify(i.name)
	if err == nil && m.prove(i.name) != nil {
		err = errRefused // it may be about to exit
	}
	if err != nil {
		return fmt.Errorf("agree with another instance of this program: %w", err)
	}
	holder := m.Record
	if !i.Granted() || holder.newer(own.Record) {
		i.set(false, &holder)
		i.setSaid("")
	}
	return i.wait(conn, lines, own, holder)
}

// Find names the process of this program that serves the network namespace of the calling thread, or returns "" if
// there is none. An error means that an unknown process holds the name.
func Find(name string) (holder string, err error) {
	conn, err := net.DialTimeout("unix", name, patience)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	if err := trusted(conn); err != nil {
		return "", err
	}
	v, err := newVerifier()
	if err != nil {
		return "", err
	}
	defer v.close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := send(conn, message{challenge: v.challenge}); err != nil {
		return "", err
	}
	m, err := receive(bufio.NewReaderSize(conn, longest))
	if err != nil {
		return "", fmt.Errorf("%w: %w", errSilent, err)
	}
	return m.String(), v.verify(name)
}

// wait waits until the holder exits or yields, and announces changes of this process since the message own.
func (i *Instance) wait(conn net.Conn, lines *bufio.Reader, own message, holder Record) error {
	_ = conn.SetReadDeadline(time.Time{})
	done := make(chan error, 1)
	go func() {
		_, err := receive(lines)
		done <- err
	}()
	for claimed := false; ; {
		if own.Ready && !claimed && own.newer(holder) {
			claimed = true
			_ = conn.SetReadDeadline(time.Now().Add(2 * patience)) // the holder yields, unless it hangs
		}
		select {
		case <-i.wake:
			if now := i.own(own.challenge); now != own {
				own = now
				_ = send(conn, own) // if this fails, the holder has exited
			}
		case err := <-done:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("agree with another instance of this program: %w", errSilent)
			}
			return nil
		}
	}
}

// trusted fails if the peer belongs to a user other than root and this process's user, so that no other user uses up
// the guests of a holder.
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
		return fmt.Errorf("the socket %s is held by a process of user %d (pid %d), which is passed over",
			conn.RemoteAddr(), peer.Uid, peer.Pid)
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

// receive reads one line of bounded length.
func receive(from *bufio.Reader) (m message, err error) {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(line, &m)
}
