package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	// warm is how many requests come before the change.
	warm = 150
	// calm is how many requests in a row must pass the removed endpoint by: with it still in use, that happens once in
	// 10^10 runs.
	calm = 60
)

// request is one of a stream of requests.
type request struct {
	lab.Answer
	at time.Time // of the answer
}

// stream is requests one after the other, until they no longer go to one endpoint.
type stream struct {
	warmed chan struct{} // closed after the first requests
	done   chan struct{} // closed when it has ended

	mu       sync.Mutex
	changed  time.Time // zero before the change
	requests []request
	err      error
}

func newStream() *stream {
	return &stream{warmed: make(chan struct{}), done: make(chan struct{})}
}

// run asks until calm requests in a row after the change have not come to the host called gone.
func (s *stream) run(ctx context.Context, from *lab.Host, gone string) {
	defer close(s.done)
	for passed := 0; passed < calm; {
		begun := time.Now()
		a := from.Probe(ctx, inet.TCP, web4, lab.Options{})
		changed := s.add(request{a, time.Now()})
		switch {
		case a.Outcome == lab.Failed:
			s.err = fmt.Errorf("ask %s: %w", web4, a.Err)
			return
		case changed.IsZero() || begun.Before(changed) || a.Server == gone:
			passed = 0
		default:
			passed++
		}
	}
}

// add keeps a request and returns the time of the change.
func (s *stream) add(r request) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests = append(s.requests, r); len(s.requests) == warm {
		close(s.warmed)
	}
	return s.changed
}

func (s *stream) change(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = at
}

// followed returns the time from the change to the first answer after which none came from the host called gone.
func (s *stream) followed(gone string) time.Duration {
	first := len(s.requests)
	for first > 0 && s.requests[first-1].Server != gone && s.requests[first-1].at.After(s.changed) {
		first--
	}
	return s.requests[first].at.Sub(s.changed)
}

// unanswered counts the requests that were lost or refused.
func (s *stream) unanswered() (n int) {
	for _, r := range s.requests {
		if r.Outcome != lab.Answered {
			n++
		}
	}
	return n
}

// removal takes an endpoint away while requests keep coming.
func (d *demo) removal(ctx context.Context) error {
	before, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	s, err := d.watched(ctx)
	if err != nil {
		return err
	}
	d.requests += len(s.requests)
	d.timeline(s)
	if err := d.follows(ctx, s); err != nil {
		return err
	}
	after, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	n := after.batches() - before.batches()
	err = d.expect(n > 0, fmt.Sprintf("%s with %s for the kernel, committed in %s.", batches(n),
		plural(after.elements()-before.elements(), "element"), millis(after.kernel()-before.kernel())), "a batch or more", "none")
	if err != nil {
		return err
	}
	_, err = d.balanced(ctx, d.asker, web4, "web", d.remaining())
	return err
}

// watched makes the change in the middle of a stream of requests, and returns the stream when it has ended.
func (d *demo) watched(ctx context.Context) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := newStream()
	go s.run(ctx, d.asker, d.moved.Name)
	select {
	case <-s.warmed:
	case <-s.done:
		return nil, s.err
	}
	at, err := d.source.apply(ctx, withoutPod1)
	if err != nil {
		cancel()
		<-s.done
		return nil, err
	}
	s.change(at)
	<-s.done
	if errors.Is(s.err, context.DeadlineExceeded) {
		return nil, &mismatch{"Traffic follows the change.", "no more answers from " + d.moved.Name, fmt.Sprintf("answers from it %v later", patience)}
	}
	return s, s.err
}

// follows states what the stream showed.
func (d *demo) follows(ctx context.Context, s *stream) error {
	took := s.followed(d.moved.Name)
	after := "the change of the file"
	if d.api {
		after = "the change in the API server"
	}
	d.out.ok(fmt.Sprintf("%s after %s, no request reaches %s any more.", millis(max(0, took)), after, d.moved.Name))
	if !d.api && took > 45*time.Millisecond {
		d.out.note("  50 ms of it: the program waits until no file of the folder changes any more.")
	}
	lost := s.unanswered()
	err := d.expect(lost == 0, fmt.Sprintf("None of the %d requests around the change was lost.", len(s.requests)),
		"all answered", plural(lost, "request")+" without an answer")
	if err != nil {
		return err
	}
	return d.follows6(ctx)
}

// follows6 waits for IPv6, whose EndpointSlice is another object.
func (d *demo) follows6(ctx context.Context) error {
	var a answers
	err := d.daemon.await(ctx, "IPv6 traffic to follow", func(ctx context.Context) (err error) {
		if a, err = d.ask(ctx, d.asker, web6, calm); err == nil && a.count[d.moved.Name] > 0 {
			err = fmt.Errorf("answers: %s", a)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.out.ok(fmt.Sprintf("IPv6 too: %s.", a))
	return nil
}

// columns is the most that a timeline has.
const columns = 60

// timeline draws who answered when.
func (d *demo) timeline(s *stream) {
	begin, end := s.requests[0].at, s.requests[len(s.requests)-1].at
	width := max(time.Millisecond, (end.Sub(begin)/columns + time.Millisecond).Truncate(time.Millisecond))
	n := int(end.Sub(begin)/width) + 1
	counts, largest := map[string][]int{}, 0
	for _, r := range s.requests {
		if counts[r.Server] == nil {
			counts[r.Server] = make([]int, n)
		}
		c := &counts[r.Server][int(r.at.Sub(begin)/width)]
		*c++
		largest = max(largest, *c)
	}
	d.out.line("               " + strings.Repeat(" ", max(0, int(s.changed.Sub(begin)/width))) + "↓ change")
	for _, h := range d.endpoints {
		if counts[h.Name] == nil {
			counts[h.Name] = make([]int, n)
		}
		d.out.line(fmt.Sprintf("      %-8s %s", h.Name, d.out.paint(d.colour(h.Name), spark(counts[h.Name], largest))))
	}
	d.out.note(fmt.Sprintf("           answers over time, %d ms a column", width.Milliseconds()))
}
