package instance

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// process is one of several in a test, with a loop that serves while it may.
type process struct {
	*Instance
	name string
	end  context.CancelFunc
	gone chan struct{}
}

// crowd is a group of processes, of which at most one may serve at any time.
type crowd struct {
	*testing.T
	socket  string
	mu      sync.Mutex
	serving []string
	unknown chan error
	// always is the only process that may serve, and that may not stop, if set. several processes may serve at once if
	// it is true.
	always  string
	several bool
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{T: t, socket: fmt.Sprintf("@%s-%d", t.Name(), time.Now().UnixNano()), unknown: make(chan error, 10)}
}

// start starts a process. started is its start time.
func (c *crowd) start(name string, started int64, ready bool) *process {
	ctx, cancel := context.WithCancel(c.Context())
	p := &process{Instance: New(c.socket, Record{ID: name, PID: int(started), Name: name, Started: started}), name: name, end: cancel, gone: make(chan struct{})}
	p.Unknown = func(err error) { c.unknown <- err }
	if ready {
		p.Ready()
	}
	agreeing, leave := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(p.gone)
		p.Run(agreeing)
	}()
	go func() {
		defer leave() // not before it has stopped
		c.loop(ctx, p)
		c.serve(p, false)
	}()
	c.Cleanup(func() { p.exit() })
	return p
}

func (c *crowd) loop(ctx context.Context, p *process) {
	for ctx.Err() == nil {
		granted := p.Granted().Load()
		c.serve(p, granted)
		if !granted {
			p.Stopped()
		}
		select {
		case <-p.Changed():
		case <-ctx.Done():
		}
	}
}

// serve records whether a process serves, and fails if two do.
func (c *crowd) serve(p *process, serves bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = slices.DeleteFunc(c.serving, func(name string) bool { return name == p.name })
	if serves {
		c.serving = append(c.serving, p.name)
	}
	if c.always != "" && !slices.Equal(c.serving, []string{c.always}) && c.Context().Err() == nil {
		c.Errorf("%q serves instead of %s", c.serving, c.always)
	}
	if len(c.serving) > 1 && !c.several {
		c.Errorf("%s serve at once", strings.Join(c.serving, " and "))
	}
}

func (p *process) exit() {
	p.end()
	<-p.gone
}

func (c *crowd) await(want string) {
	c.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		got := strings.Join(c.serving, " ")
		c.mu.Unlock()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%q serves, want %q", got, want)
		}
	}
}

// awaitOther waits until a process knows the serving one.
func (c *crowd) awaitOther(p *process, want string) {
	c.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		other := p.Other()
		if strings.HasPrefix(other, want+", pid ") {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s knows of %q, want %q", p.name, other, want)
		}
	}
}

func TestTheNewestThatIsReadyServes(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	a := c.start("a", 1, true)
	c.await("a")
	b := c.start("b", 2, false)
	c.awaitOther(b, "a")
	c.await("a") // b still reads the API
	b.Ready()
	c.await("b")
	c.awaitOther(a, "b")
	d := c.start("d", 0, true) // the oldest process, which joins last
	c.awaitOther(d, "b")
	c.await("b")
	b.exit()
	c.await("a")
	c.awaitOther(d, "a")
	a.exit()
	c.await("d")
	d.exit()
	c.await("")
}

// A ready process does not wait for a newer one that is not ready.
func TestAnOlderOneThatIsReadyServesUntilTheNewerIs(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	b := c.start("b", 2, false)
	for !b.Alone() {
		time.Sleep(time.Millisecond)
	}
	c.start("a", 1, true)
	c.await("a")
	b.Ready()
	c.await("b")
}

func TestManyShortLivedInstances(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	var all []*process
	for i := range 8 {
		all = append(all, c.start(fmt.Sprint(i), int64(i), true))
	}
	for i := len(all) - 1; i >= 0; i-- {
		c.await(fmt.Sprint(i))
		all[i].exit()
	}
}

// A silent holder delays another process only briefly.
func TestASilentHolderIsIgnored(t *testing.T) {
	for name, handle := range map[string]func(net.Conn){
		"refuses":      func(conn net.Conn) { _ = conn.Close() },
		"says nothing": func(net.Conn) {},
		"says much":    func(conn net.Conn) { _, _ = conn.Write([]byte(strings.Repeat("x", 10*longest))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			l, err := net.Listen("unix", c.socket)
			lab.Must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					handle(conn)
				}
			}()
			c.start("a", 1, true)
			c.await("a")
			if err := <-c.unknown; err == nil {
				t.Error("it does not say so")
			}
			_ = l.Close()
			b := c.start("b", 2, false)
			c.awaitOther(b, "a")
		})
	}
}

func TestRecordsOfOneProcessDiffer(t *testing.T) {
	a, b := Own(), Own()
	if a.ID == b.ID || a.PID == 0 || a.Name == "" || a.newer(b) == b.newer(a) {
		t.Errorf("two records of this process: %+v, %+v", a, b)
	}
}

// TestFind names the process that serves, without becoming a guest, and the guests of that process.
func TestFind(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	if got, err := Find(c.socket); got != "" || err != nil {
		t.Errorf("without a process: %q, %v", got, err)
	}
	older := c.start("older", 1, true)
	c.await("older")
	if got, err := Find(c.socket); got != "older, pid 1" || err != nil {
		t.Errorf("with one process: %q, %v", got, err)
	}
	guests := func(i *process, wantOlder, wantNewer []string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			older, newer := i.Guests()
			if slices.Equal(older, wantOlder) && slices.Equal(newer, wantNewer) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("older guests %q, want %q; newer ones %q, want %q", older, wantOlder, newer, wantNewer)
			}
		}
	}
	guests(older, nil, nil)
	newer := c.start("newer", 2, false)
	guests(older, nil, []string{"newer, pid 2"})
	newer.Ready()
	c.await("newer")
	guests(newer, []string{"older, pid 1"}, nil)
	if got, err := Find(c.socket); got != "newer, pid 2" || err != nil {
		t.Errorf("with two processes: %q, %v", got, err)
	}
}
