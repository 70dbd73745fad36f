package instance

import (
	"context"
	"errors"
	"fmt"
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
	guests map[*peer]Record
	// said is the last reason passed to Unknown, or "" if this process communicates with the holder or is it.
	said string
	// refused is done after the first claim without a proof.
	refused sync.Once
}

// New returns an instance that may not serve yet.
func New(name string, self Record) *Instance {
	return &Instance{
		name: name, self: self, Unknown: func(error) {}, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}, 1), guests: map[*peer]Record{},
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

// Granted is true while this process may serve.
func (i *Instance) Granted() *atomic.Bool { return &i.granted }

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

// setGuest records a guest, or forgets it if it has disconnected: without a record.
func (i *Instance) setGuest(p *peer, r *Record) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r != nil {
		i.guests[p] = *r
	} else {
		delete(i.guests, p)
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

// claim is the wish of a guest to have the name. The goroutine of the guest does not change it.
type claim struct {
	*peer
	record Record
}

// entertain answers a guest until it disconnects or claims the name. A claim passes on the connection.
func (i *Instance) entertain(ctx context.Context, conn net.Conn, claims chan<- claim) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := newPeer(ctx, conn)
	if err != nil {
		return
	}
	defer i.setGuest(p, nil)
	m, err := receive(p.lines)
	if err != nil || m.prove(i.name) != nil || send(p, i.own(p.proof.challenge)) != nil || m.ID == "" {
		return
	}
	if err := p.proof.verify(i.name); err != nil {
		if m.Ready && m.newer(i.own(challenge{}).Record) && ctx.Err() == nil {
			i.refused.Do(func() {
				i.Unknown(fmt.Errorf("a process claims to be a newer instance of this program: %w", err))
			})
		}
		return
	}
	_ = p.SetDeadline(time.Time{})
	for ; err == nil; m, err = receive(p.lines) {
		if i.setGuest(p, &m.Record); !m.Ready {
			continue
		}
		select {
		case claims <- claim{p, m.Record}:
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
	granted := i.granted.Load()
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
	if errors.Is(err, unix.ECONNREFUSED) {
		pause(ctx, again/100) // the holder has just exited
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := newPeer(ctx, conn)
	if err != nil {
		return err
	}
	own := i.own(p.proof.challenge)
	err = send(p, own)
	m := message{}
	if err == nil {
		m, err = receive(p.lines)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSilent
	case err != nil:
		return errRefused
	}
	if err := p.proof.verify(i.name); err != nil {
		return err
	}
	if m.prove(i.name) != nil {
		return errRefused // it may be about to exit
	}
	if !i.granted.Load() || m.newer(own.Record) {
		i.set(false, &m.Record)
		i.setSaid("")
	}
	return i.wait(p, own, m.Record)
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p, err := newPeer(ctx, conn)
	if err != nil {
		return "", err
	}
	if err := send(p, message{challenge: p.proof.challenge}); err != nil {
		return "", err
	}
	m, err := receive(p.lines)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errSilent, err)
	}
	return m.String(), p.proof.verify(name)
}

// wait waits until the holder exits or yields, and announces changes of this process since the message own.
func (i *Instance) wait(p *peer, own message, holder Record) error {
	_ = p.SetDeadline(time.Time{})
	done := make(chan error, 1)
	go func() {
		_, err := receive(p.lines)
		done <- err
	}()
	for claimed := false; ; {
		if own.Ready && !claimed && own.newer(holder) {
			claimed = true
			_ = p.SetReadDeadline(time.Now().Add(2 * patience)) // the holder yields, unless it hangs
		}
		select {
		case <-i.wake:
			if now := i.own(own.challenge); now != own {
				own = now
				_ = send(p, own) // if this fails, the holder has exited
			}
		case err := <-done:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return errSilent
			}
			return nil
		}
	}
}
