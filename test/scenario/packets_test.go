package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// line is one line of a packets file with its braces expanded: the source and destination of packets, and their result.
type line struct {
	text string
	from string
	// source is the source address, for a host with several; usually the kernel chooses.
	source netip.Addr
	to     netip.AddrPort
	// protocol is 0 for an echo request.
	protocol inet.Protocol
	// outcome is the outcome of every packet. For Answered, servers are all servers that reply.
	outcome lab.Outcome
	servers []server
	// affinity is set if all replies must come from the same server. Lines with the same pin, if not empty, share that server.
	affinity bool
	pin      string
	// stays is set for a connection that is opened now and must live until the scenario ends.
	stays bool
	// fills is the number of UDP clients that each server can have, or 0. over is the outcome of all others.
	fills int
	over  lab.Outcome
	// flow is set if a UDP client sends from the same port in all lines with this name, source and destination.
	flow string
	// theirs is the result with kube-proxy, if it differs; why names the difference.
	theirs *line
	why    string
	// any is set in theirs if kube-proxy's result varies, or is not visible in packets.
	any bool
}

// server is a server that replies, and the client's address that it sees: "kept", "node", or an address. Port is 0 for any port.
// The server unseen is the client itself, which gets its own packets back with its own address, and drops them.
type server struct {
	name string
	port uint16
	seen string
}

const unseen = "lost"

// loses reports whether one of the servers gets no packet.
func (l *line) loses() bool {
	return slices.ContainsFunc(l.servers, func(s server) bool { return s.seen == unseen })
}

// expand replaces {a,b} by a and by b, as a shell does.
func expand(text string) []string {
	open := strings.IndexByte(text, '{')
	if open < 0 {
		return []string{text}
	}
	end := open + strings.IndexByte(text[open:], '}')
	if end < open {
		return []string{text}
	}
	var out []string
	for _, choice := range strings.Split(text[open+1:end], ",") {
		out = append(out, expand(text[:open]+choice+text[end+1:])...)
	}
	return out
}

func parsePackets(text string) (lines []line, err error) {
	for number, raw := range strings.Split(text, "\n") {
		raw, _, _ = strings.Cut(raw, "#")
		if strings.TrimSpace(raw) == "" {
			continue
		}
		for _, one := range expand(raw) {
			l, err := parseBoth(one)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q: %w", number+1, one, err)
			}
			lines = append(lines, l)
		}
	}
	return lines, nil
}

// theirsPattern matches the text after the bar in a line.
var theirsPattern = regexp.MustCompile(`^\s*kube-proxy: (.*) \((.*)\)\s*$`)

// parseBoth parses a line with an optional result for kube-proxy after a bar.
func parseBoth(text string) (l line, err error) {
	here, there, differs := strings.Cut(text, "|")
	if l, err = parseLine(here); err != nil || !differs {
		return l, err
	}
	match := theirsPattern.FindStringSubmatch(there)
	if match == nil {
		return l, fmt.Errorf("%q follows the bar, want \"kube-proxy: OUTCOME (DIFFERENCE)\"", there)
	}
	l.why = match[2]
	if match[1] == "any" {
		l.theirs = &line{any: true}
		return l, nil
	}
	theirs, err := parseLine(strings.Join(append(strings.Fields(here)[:2], match[1]), " "))
	theirs.flow = l.flow
	l.theirs = &theirs
	return l, err
}

func parseLine(text string) (l line, err error) {
	fields := strings.Fields(text)
	l.text = strings.Join(fields, " ")
	if len(fields) < 3 {
		return l, errors.New("want SOURCE DESTINATION and a result")
	}
	if l.from, l.source, err = parseSource(fields[0]); err != nil {
		return l, err
	}
	if l.to, l.protocol, err = parseDestination(fields[1]); err != nil {
		return l, err
	}
	what := fields[2:]
	if name, found := strings.CutPrefix(what[0], "flow="); found {
		l.flow, what = name, what[1:]
		if name == "" || len(what) == 0 || l.protocol != inet.UDP {
			return l, errors.New("want a name, UDP and an outcome for a flow")
		}
	}
	switch what[0] {
	case "refused":
		l.outcome = lab.Refused
	case "timeout":
		l.outcome = lab.TimedOut
	case "unreachable":
		l.outcome = lab.Unreachable
	case "answers":
		if l.outcome = lab.Answered; l.protocol != 0 {
			return l, errors.New("only echo requests answer without a server")
		}
	case "stays":
		l.outcome, l.stays = lab.Answered, true
	case "=":
		l.outcome = lab.Answered
		return l, l.parseServers(what[1:])
	default:
		return l, fmt.Errorf("%q is not an outcome", what[0])
	}
	if len(what) > 1 {
		return l, fmt.Errorf("%q follows the outcome", what[1])
	}
	return l, nil
}

// parseSource parses HOST or HOST@ADDRESS.
func parseSource(s string) (host string, addr netip.Addr, err error) {
	host, text, given := strings.Cut(s, "@")
	if given {
		addr, err = netip.ParseAddr(text)
	}
	return host, addr, err
}

func parseDestination(s string) (to netip.AddrPort, protocol inet.Protocol, err error) {
	where, proto, ok := strings.Cut(s, "/")
	if !ok {
		return to, 0, fmt.Errorf("%q has no protocol", s)
	}
	if proto == "icmp" {
		addr, err := netip.ParseAddr(where)
		return netip.AddrPortFrom(addr, 0), 0, err
	}
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		if p.String() == proto {
			protocol = p
		}
	}
	if protocol == 0 {
		return to, 0, fmt.Errorf("%q is not a protocol", proto)
	}
	// Brackets are optional: they are inconvenient if braces stand for both families.
	at := strings.LastIndexByte(where, ':')
	if at < 0 {
		return to, 0, fmt.Errorf("%q has no port", where)
	}
	addr, err := netip.ParseAddr(strings.Trim(where[:at], "[]"))
	if err != nil {
		return to, 0, err
	}
	port, err := strconv.ParseUint(where[at+1:], 10, 16)
	return netip.AddrPortFrom(addr, uint16(port)), protocol, err
}

// parseServers parses "pod-0 pod-1:9090 from kept affinity=A". A server's own "pod-0/node" overrides "from".
func (l *line) parseServers(fields []string) error {
	from := ""
	for i := 0; i < len(fields); i++ {
		word, pin, _ := strings.Cut(fields[i], "=")
		switch {
		case word == "from" && i+1 < len(fields):
			i++
			from = fields[i]
		case word == "affinity":
			l.affinity, l.pin = true, pin
		case word == "fills":
			number, over, _ := strings.Cut(pin, "/")
			n, err := strconv.Atoi(number)
			if l.over = map[string]lab.Outcome{"refused": lab.Refused, "timeout": lab.TimedOut}[over]; err != nil || n < 1 || l.over == 0 || l.protocol != inet.UDP {
				return fmt.Errorf("%q: want a number, \"/refused\" or \"/timeout\", and UDP", fields[i])
			}
			l.fills = n
		default:
			s, err := parseServer(fields[i])
			if err != nil {
				return err
			}
			l.servers = append(l.servers, s)
		}
	}
	for i := range l.servers {
		if l.servers[i].seen == "" {
			l.servers[i].seen = from
		}
		if l.servers[i].seen == "" {
			return errors.New("the line does not say which address the servers see: end with \"from kept\" or \"from node\"")
		}
	}
	if len(l.servers) == 0 {
		return errors.New("there is no server")
	}
	return nil
}

func parseServer(text string) (s server, err error) {
	var port string
	s.name, s.seen, _ = strings.Cut(text, "/")
	s.name, port, _ = strings.Cut(s.name, ":")
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return s, err
		}
		s.port = uint16(n)
	}
	return s, nil
}

// traffic sends a scenario's packets.
type traffic struct {
	lab *lab.Lab
	// pins maps a name in the scenario to a server.
	pins map[string]string
	// open are the connections that must stay open.
	open []*connection
	// flows are the sockets of UDP clients that keep sending.
	flows map[string]*flow
	// settled waits until stale flows are deleted. Without it, flows are retried for a while.
	settled func() error
	// foretell is called with each line that runs in sequence, before its packets.
	foretell func(line) error
}

// Timeouts. A wait for an expected answer may take as long as a loaded machine needs. A wait for no answer always takes the whole
// time.
const (
	patience  = 3 * time.Second
	nothingIn = 150 * time.Millisecond
)

// run sends the packets of all lines, most of them concurrently, and returns the failures.
func (tr *traffic) run(ctx context.Context, lines []line) []error {
	errs := tr.alive()
	var mu sync.Mutex
	var wg sync.WaitGroup
	const atOnce = 32
	slots := make(chan struct{}, atOnce)
	for _, l := range lines {
		if l.inOrder() {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := tr.line(ctx, l); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %w", l.text, err))
			}
		})
	}
	wg.Wait()
	if tr.settled != nil && slices.ContainsFunc(lines, func(l line) bool { return l.flow != "" }) {
		if err := tr.settled(); err != nil {
			errs = append(errs, err)
		}
	}
	// The order matters for session affinity.
	for _, l := range lines {
		if !l.inOrder() {
			continue
		}
		if tr.foretell != nil {
			if err := tr.foretell(l); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", l.text, err))
			}
		}
		if err := tr.line(ctx, l); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.text, err))
		}
	}
	return errs
}

func (l *line) inOrder() bool { return l.affinity || l.stays || l.flow != "" || l.fills > 0 }

func (tr *traffic) host(name string) (*lab.Host, error) {
	for _, h := range tr.lab.Hosts() {
		if h.Name == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("there is no host %q", name)
}

func (tr *traffic) line(ctx context.Context, l line) error {
	h, err := tr.host(l.from)
	switch {
	case err != nil:
		return err
	case l.stays:
		return tr.connect(ctx, h, l)
	case l.flow != "":
		return tr.goOn(h, l)
	case l.outcome != lab.Answered || l.protocol == 0:
		return constant(ctx, h, l)
	case l.affinity:
		return tr.pinned(ctx, h, l)
	case l.fills > 0:
		return tr.fill(ctx, h, l)
	}
	return tr.spread(ctx, h, l)
}

func probe(ctx context.Context, h *lab.Host, l line, timeout time.Duration) lab.Answer {
	o := lab.Options{Timeout: timeout, Source: l.source}
	if l.protocol == 0 {
		return h.Ping(ctx, l.to.Addr(), o)
	}
	return h.Probe(ctx, l.protocol, l.to, o)
}

// constant expects the same outcome from a few packets.
func constant(ctx context.Context, h *lab.Host, l line) error {
	tries, timeout := 3, patience
	if l.outcome == lab.TimedOut {
		tries, timeout = 1, nothingIn
	}
	for range tries {
		if a := probe(ctx, h, l, timeout); a.Outcome != l.outcome {
			return fmt.Errorf("got %q (%v)", a, a.Err)
		}
	}
	return nil
}

// spread expects answers from all servers and from no other. With this number of tries, the probability that chance leaves a server
// out is below one in a billion.
func (tr *traffic) spread(ctx context.Context, h *lab.Host, l line) error {
	n, wait := len(l.servers), patience
	if l.loses() {
		wait = noAnswer
	}
	least, most := 2*n+2, 25*n
	seen := map[server]bool{}
	for i := 0; i < most && (i < least || len(seen) < n); i++ {
		s, err := tr.answer(h, l, probe(ctx, h, l, wait))
		if err != nil {
			return err
		}
		seen[s] = true
	}
	if len(seen) < n {
		return fmt.Errorf("of %d servers only %v answered", n, seen)
	}
	return nil
}

// fill expects that each server answers a number of UDP clients, and that all others then have the outcome over. Earlier clients are forgotten.
func (tr *traffic) fill(ctx context.Context, h *lab.Host, l line) error {
	if err := tr.lab.Node.Do(forgetProbes); err != nil {
		return err
	}
	counts := map[server]int{}
	offer := func(n int) (outcomes map[lab.Outcome]int, err error) {
		answers := make([]lab.Answer, n)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i] = probe(ctx, h, l, fillTime) })
		}
		wg.Wait()
		outcomes = map[lab.Outcome]int{}
		for _, a := range answers {
			if outcomes[a.Outcome]++; a.Outcome == lab.Answered {
				s, err := tr.answer(h, l, a)
				if counts[s]++; err != nil || counts[s] > l.fills {
					return outcomes, errors.Join(err, fmt.Errorf("the servers have %v clients, want at most %d", counts, l.fills))
				}
			}
		}
		return outcomes, nil
	}
	all := l.fills * len(l.servers)
	for deadline, got := time.Now().Add(2*patience+fillPause), 0; got < all; {
		outcomes, err := offer(all - got + 2)
		if err != nil {
			return err
		}
		if got += outcomes[lab.Answered]; got < all && time.Now().After(deadline) {
			return fmt.Errorf("the servers have %v clients, want %d of each", counts, l.fills)
		}
	}
	const others = 6
	outcomes, err := offer(others)
	if n := outcomes[l.over]; err == nil && (n == 0 || l.over == lab.TimedOut && n < others) {
		err = fmt.Errorf("after %v clients, the outcomes are %v, want %s", counts, outcomes, l.over)
	}
	return err
}

// fillTime is the time for which fill waits for an answer. A full server is skipped for fillPause.
const (
	fillTime  = 200 * time.Millisecond
	fillPause = 5 * time.Second
)

// pinned expects all answers from one server.
func (tr *traffic) pinned(ctx context.Context, h *lab.Host, l line) error {
	tries := 10
	if testing.Short() {
		tries = 3 // there are many such lines
	}
	chosen := ""
	if l.pin != "" {
		chosen = tr.pins[l.pin]
	}
	for range tries {
		s, err := tr.answer(h, l, probe(ctx, h, l, patience))
		if err != nil {
			return err
		}
		if chosen != "" && s.name != chosen {
			return fmt.Errorf("answer from %s after one from %s", s.name, chosen)
		}
		chosen = s.name
	}
	if l.pin != "" {
		tr.pins[l.pin] = chosen
	}
	return nil
}

// answer returns the expected server that sent an answer, and checks the client's address that this server has seen.
func (tr *traffic) answer(h *lab.Host, l line, a lab.Answer) (server, error) {
	if a.Outcome == lab.TimedOut && l.loses() {
		return l.servers[slices.IndexFunc(l.servers, func(s server) bool { return s.seen == unseen })], nil
	}
	if a.Outcome != lab.Answered {
		return server{}, fmt.Errorf("got %q (%v)", a, a.Err)
	}
	i := slices.IndexFunc(l.servers, func(s server) bool {
		return s.name == a.Server && (s.port == 0 || s.port == a.Local.Port())
	})
	if i < 0 {
		return server{}, fmt.Errorf("%s must not answer", a)
	}
	s := l.servers[i]
	want := h.Addr(l.to.Addr())
	switch s.seen {
	case "kept":
		if l.source.IsValid() {
			want = l.source
		}
	case "node":
		want = tr.lab.Node.Addr(l.to.Addr())
	default:
		want, _ = netip.ParseAddr(s.seen)
	}
	if a.Source.Addr() != want {
		return s, fmt.Errorf("%s, but should have seen %s", a, want)
	}
	return s, nil
}

// connection is a connection to a server that echoes each line.
type connection struct {
	text string
	conn net.Conn
	in   *bufio.Reader
}

func (tr *traffic) connect(ctx context.Context, h *lab.Host, l line) error {
	conn, err := h.Dial(ctx, l.protocol, l.to)
	if err != nil {
		return err
	}
	c := &connection{l.text, conn, bufio.NewReader(conn)}
	tr.open = append(tr.open, c)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.in.ReadString('\n'); err != nil { // the server's greeting
		return err
	}
	return c.echo()
}

// echo checks that packets pass in both directions.
func (c *connection) echo() error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.conn.Write([]byte("still here\n")); err != nil {
		return err
	}
	got, err := c.in.ReadString('\n')
	if err == nil && got != "still here\n" {
		err = fmt.Errorf("got %q back", got)
	}
	return err
}

// alive checks the connections that were opened earlier.
func (tr *traffic) alive() (errs []error) {
	for _, c := range tr.open {
		if err := c.echo(); err != nil {
			errs = append(errs, fmt.Errorf("%s: connection is lost: %w", c.text, err))
		}
	}
	return errs
}

func (tr *traffic) close() error {
	var errs []error
	for _, c := range tr.open {
		errs = append(errs, c.conn.Close())
	}
	for _, f := range tr.flows {
		errs = append(errs, f.conn.Close())
	}
	return errors.Join(errs...)
}
