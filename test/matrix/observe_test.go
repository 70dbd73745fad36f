package matrix

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	// patience is the timeout if an answer is expected: a loaded machine may need long.
	patience = 5 * time.Second
	// nothingIn is the timeout if no answer is expected: each such connection takes all of it.
	nothingIn = 150 * time.Millisecond
	// undecided is the timeout if some endpoints answer and one does not. A late answer then counts as none. If the cell fails for
	// this reason, its group connects again with patience.
	undecided = 600 * time.Millisecond
)

// groupsAtOnce limits the concurrent groups, silentAtOnce the concurrent connections that may get no answer.
const (
	groupsAtOnce = 128
	silentAtOnce = 96
)

// observation holds the different outcomes of a cell's connections, sorted.
type observation []outcome

func (o observation) String() string { return list(o) }

// lookout sends packets in one lab.
type lookout struct {
	lab *lab.Lab
	// number is the position of each Service, which determines its addresses.
	number map[service]int
	host   map[string]*lab.Host
	// silent has one element for each open connection that may get no answer.
	silent chan struct{}
	// nothingIn is the time to wait if no answer is expected.
	nothingIn time.Duration
}

func newLookout(l *lab.Lab) *lookout {
	v := &lookout{
		lab: l, number: map[service]int{}, host: map[string]*lab.Host{}, silent: make(chan struct{}, silentAtOnce), nothingIn: nothingIn,
	}
	for i, s := range services() {
		v.number[s] = i
	}
	for _, h := range l.Hosts() {
		v.host[h.Name] = h
	}
	return v
}

// observe opens the connections of all cells, and returns the results by cell.
func (v *lookout) observe(ctx context.Context, groups []group) map[cell]observation {
	var mu sync.Mutex
	all := map[cell]observation{}
	var wg sync.WaitGroup
	slots := make(chan struct{}, groupsAtOnce)
	for _, g := range slowFirst(groups) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			seen := v.group(ctx, g)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, seen)
		})
	}
	wg.Wait()
	return all
}

// group opens the connections of a group's cells, in order.
func (v *lookout) group(ctx context.Context, g group) map[cell]observation {
	try := func(undecided time.Duration) map[cell]observation {
		seen := map[cell]observation{}
		for _, c := range g {
			seen[c] = v.cell(ctx, c, undecided)
		}
		return seen
	}
	seen := try(undecided)
	late := slices.ContainsFunc(g, func(c cell) bool { return want(c).mixed() && slices.Contains(seen[c], dropped) })
	if late && len(judge(g, seen)) > 0 {
		return try(patience)
	}
	return seen
}

// cell opens connections until all expected outcomes have occurred: at least and at most as many as tries returns.
func (v *lookout) cell(ctx context.Context, c cell, undecided time.Duration) observation {
	w := want(c)
	switch {
	case w.verdict == dropped:
		return v.volley(ctx, c, v.nothingIn)
	case w.mixed():
		return v.volley(ctx, c, undecided)
	}
	least, most := tries(c, w)
	timeout := patience
	var seen observation
	for n := 0; n < most && (n < least || !seen.complete(c, w)); n++ {
		o := v.once(ctx, c, timeout)
		if !slices.Contains(w.outcomes(), o) {
			// The cell has failed. A few more connections with a short timeout collect other outcomes for the message.
			const more = 6
			most, timeout = min(most, n+more), nothingIn
		}
		seen = seen.with(o)
	}
	return seen
}

// volley opens all connections of a cell concurrently, because some get no answer. A client with session affinity first opens one, so
// that the rules remember its endpoint.
func (v *lookout) volley(ctx context.Context, c cell, timeout time.Duration) (seen observation) {
	_, most := tries(c, want(c))
	once := func() outcome {
		v.silent <- struct{}{}
		defer func() { <-v.silent }()
		return v.once(ctx, c, timeout)
	}
	if c.service.affinity {
		seen = seen.with(once())
		most--
	}
	answers := make(chan outcome, most)
	for range most {
		go func() { answers <- once() }()
	}
	for range most {
		seen = seen.with(<-answers)
	}
	return seen
}

// with adds an outcome if it is missing.
func (o observation) with(other outcome) observation {
	at, found := slices.BinarySearch(o, other)
	if found {
		return o
	}
	return slices.Insert(o, at, other)
}

// mixed reports whether some connections are expected to get an answer, and others none.
func (w wanted) mixed() bool { return w.verdict == "" && slices.Contains(w.outcomes(), dropped) }

// slowFirst moves the groups with connections without an answer to the beginning: at the end, other groups would wait for them.
func slowFirst(groups []group) []group {
	waits := func(g group) (cells int) {
		for _, c := range g {
			if slices.Contains(want(c).outcomes(), dropped) {
				cells++
			}
		}
		return cells
	}
	return slices.SortedStableFunc(slices.Values(groups), func(a, b group) int { return cmp.Compare(waits(b), waits(a)) })
}

// complete reports whether all expected outcomes were seen.
func (o observation) complete(c cell, w wanted) bool {
	return c.service.affinity || len(o) >= len(w.outcomes())
}

// tries returns the number of connections of a cell. The rules draw each endpoint with about equal probability. With three endpoints and 45
// connections, the probability that one endpoint is never drawn is less than 4·10^-8. So an endpoint that is not drawn counts as
// unreachable.
//
// A remote endpoint whose packets must be dropped gets no answer either if it draws itself. With two endpoints, the probability that
// it draws itself 25 times is about as small.
func tries(c cell, w wanted) (least, most int) {
	const certain = 45
	switch {
	case w.verdict == dropped && c.client == remoteItself:
		return 25, 25
	case w.verdict != "":
		return 2, 2
	case c.service.affinity, c.mode.choice.hashed():
		return 4, 4
	case len(w.endpoints) < len(c.service.placement.hosts()):
		return certain, certain
	}
	return 2 * len(w.endpoints), certain
}

// once opens one connection.
func (v *lookout) once(ctx context.Context, c cell, timeout time.Duration) outcome {
	name, _ := c.host()
	h := v.host[name]
	to := c.to(v.number[c.service])
	source := h.Addr(to.Addr())
	if c.client == secondary {
		source = secondaries[c.family]
	}
	options := lab.Options{Timeout: timeout, Source: source}
	var a lab.Answer
	if c.request == ping {
		a = h.Ping(ctx, to.Addr(), options)
	} else {
		a = h.Probe(ctx, c.protocol, to, options)
	}
	switch {
	case a.Outcome == lab.Answered && c.request == ping:
		return echoed
	case a.Outcome == lab.Answered:
		return reached(a.Server, v.source(c, a, h))
	case a.Outcome == lab.Refused:
		return refused
	case a.Outcome == lab.TimedOut:
		return dropped
	}
	return outcome(fmt.Sprintf("%s (%v)", a, a.Err))
}

// source names the address that the endpoint saw.
func (v *lookout) source(c cell, a lab.Answer, from *lab.Host) string {
	switch own := from.Addrs()[c.family]; {
	case a.Source.Addr() == v.lab.Node.Addrs()[c.family]:
		return fromNode
	case c.client == secondary && a.Source.Addr() == secondaries[c.family], c.client != secondary && a.Source.Addr() == own:
		return kept
	}
	return a.Source.Addr().String()
}

// failure is a cell with an unexpected result.
type failure struct {
	cell cell
	// text describes the expected and the actual result.
	text string
}

func (f failure) String() string { return f.cell.String() + ": " + f.text }

// judge compares the results of a group with the expected ones.
func judge(g group, seen map[cell]observation) (failures []failure) {
	pin := ""
	for _, c := range g {
		w, got := want(c), seen[c]
		switch {
		case !c.service.affinity || w.verdict != "":
			if !slices.Equal(got, w.outcomes()) {
				failures = append(failures, failure{c, fmt.Sprintf("want %s; got %s", w, got)})
			}
		case len(got) != 1 || w.endpoint(got[0]) == "":
			failures = append(failures, failure{c, fmt.Sprintf("want always the same endpoint, one of %s; got %s", w, got)})
		default:
			endpoint := w.endpoint(got[0])
			if _, can := w.endpoints[pin]; can && endpoint != pin {
				failures = append(failures, failure{c, fmt.Sprintf("want %s, as at the previous address; got %s", w.endpoints[pin], got)})
			}
			pin = endpoint
		}
	}
	return failures
}

// strangers lists the endpoints that no client with session affinity has got. At least 36 clients draw one of at most three endpoints
// with about equal probability. So the probability that an endpoint is missing is less than 10^-6. With source-hash, a client has one endpoint, and
// with source ranges, there are fewer clients.
func strangers(groups []group, seen map[cell]observation) (missing []string) {
	if c := groups[0][0].mode.choice; c.hashed() || c == rangesSources {
		return nil
	}
	type place struct {
		mode      mode
		dest      destination
		placement placement
		host      string
	}
	pinned := map[place]bool{}
	for _, g := range groups {
		for _, c := range g {
			w := want(c)
			for host, o := range w.endpoints {
				if c.service.affinity && c.dest != clusterIPAgain {
					at := place{c.mode, c.dest, c.service.placement, host}
					pinned[at] = pinned[at] || slices.Contains(seen[c], o)
				}
			}
		}
	}
	for at, yes := range pinned {
		if !yes {
			missing = append(missing, fmt.Sprintf("[%s] -> %s, endpoints %s, affinity: no client has got %s",
				at.mode, at.dest, at.placement, at.host))
		}
	}
	slices.Sort(missing)
	return missing
}
