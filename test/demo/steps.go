package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// many is the number of requests that show how an endpoint is picked. With three endpoints each gets 40 of them, with a
// standard deviation of 5; less than 12 for one of them happens once in ten million runs.
const (
	many  = 120
	least = 12
)

// expect writes a statement that is true, and returns a mismatch otherwise.
func (d *demo) expect(ok bool, statement, want, got string) error {
	if !ok {
		return &mismatch{statement, want, got}
	}
	d.out.ok(statement)
	return nil
}

// answers are what n requests brought: how often each server answered, or what happened instead, and as whom the servers
// saw the client.
type answers struct {
	n       int
	count   map[string]int
	sources map[netip.Addr]bool
}

// ask makes n requests one after the other, each on a connection of its own.
func (d *demo) ask(ctx context.Context, from *lab.Host, to netip.AddrPort, n int) (answers, error) {
	all := answers{n: n, count: map[string]int{}, sources: map[netip.Addr]bool{}}
	for range n {
		a := from.Probe(ctx, inet.TCP, to, lab.Options{})
		d.requests++
		switch a.Outcome {
		case lab.Failed:
			return all, fmt.Errorf("ask %s from %s: %w", to, from.Name, a.Err)
		case lab.Answered:
			all.count[a.Server]++
			all.sources[a.Source.Addr()] = true
		default:
			all.count[a.Outcome.String()]++
		}
	}
	return all, nil
}

// bars shows the answers of these hosts, and then what else there is.
func (d *demo) bars(a answers, hosts []*lab.Host) {
	var rows []row
	others := maps.Clone(a.count)
	for _, h := range hosts {
		rows = append(rows, row{h.Name, d.colour(h.Name), a.count[h.Name]})
		delete(others, h.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		rows = append(rows, row{name, d.colour(name), others[name]})
	}
	d.out.bars(rows)
}

// colour is the colour of an endpoint, or that of trouble.
func (d *demo) colour(name string) string {
	for i, colour := range []string{cyan, magenta, yellow} {
		if d.endpoints[i].Name == name {
			return colour
		}
	}
	return red
}

// String lists the answers, for a mismatch.
func (a answers) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(a.count)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, a.count[name]))
	}
	return strings.Join(parts, ", ")
}

// spread says whether exactly these hosts answered, each its share.
func (a answers) spread(hosts []*lab.Host) bool {
	total := 0
	for _, h := range hosts {
		if a.count[h.Name] < least {
			return false
		}
		total += a.count[h.Name]
	}
	return total == a.n
}

// sawOnly says whether the servers saw the client as this address only.
func (a answers) sawOnly(addr netip.Addr) bool { return len(a.sources) == 1 && a.sources[addr] }

func (a answers) seen() string {
	var addrs []string
	for s := range a.sources {
		addrs = append(addrs, s.String())
	}
	slices.Sort(addrs)
	return strings.Join(addrs, ", ")
}

// balanced asks web at an address, and shows and checks the spread.
func (d *demo) balanced(ctx context.Context, from *lab.Host, to netip.AddrPort, name string, hosts []*lab.Host) (answers, error) {
	d.out.arrow(from.Name, plural(many, "request"), name+" "+to.String())
	a, err := d.ask(ctx, from, to, many)
	if err != nil {
		return a, err
	}
	d.bars(a, hosts)
	return a, d.expect(a.spread(hosts), fmt.Sprintf("All %d answered, spread over %s.", many, plural(len(hosts), "endpoint")),
		fmt.Sprintf("at least %d answers from each of %d endpoints and nothing else", least, len(hosts)), a.String())
}

func (d *demo) clusterIP(ctx context.Context) error {
	a, err := d.balanced(ctx, d.asker, web4, "web", d.endpoints)
	if err != nil {
		return err
	}
	return d.expect(a.sawOnly(d.asker.IPv4), fmt.Sprintf("The endpoints saw the pod's own address, %s.", d.asker.IPv4),
		d.asker.IPv4.String(), a.seen())
}

func (d *demo) nodePort(ctx context.Context) error {
	a, err := d.balanced(ctx, d.lab.Client, nodePort, "node port", d.endpoints)
	if err != nil {
		return err
	}
	node := d.lab.Node.IPv4
	return d.expect(a.sawOnly(node), fmt.Sprintf("The endpoints saw the node's address, %s, so their replies return through the node.",
		node), node.String(), a.seen())
}

func (d *demo) ipv6(ctx context.Context) error {
	a, err := d.balanced(ctx, d.asker, web6, "web", d.endpoints)
	if err != nil {
		return err
	}
	return d.expect(a.sawOnly(d.asker.IPv6), fmt.Sprintf("The endpoints saw the pod's own address, %s.", d.asker.IPv6),
		d.asker.IPv6.String(), a.seen())
}

func (d *demo) affinity(ctx context.Context) error {
	const each = 20
	for _, from := range []*lab.Host{d.asker, d.asker2} {
		d.out.arrow(from.Name, plural(each, "request"), "cart "+cart.String())
		a, err := d.ask(ctx, from, cart, each)
		if err != nil {
			return err
		}
		chosen := ""
		for _, h := range d.endpoints {
			if a.count[h.Name] == each {
				chosen = h.Name
			}
		}
		d.bars(a, nil)
		err = d.expect(chosen != "", fmt.Sprintf("All %d went to %s.", each, chosen), "one endpoint for all", a.String())
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) refusal(ctx context.Context) error {
	for _, c := range []struct {
		proto inet.Protocol
		to    netip.AddrPort
		from  *lab.Host
	}{
		{inet.TCP, emptyTCP, d.asker}, {inet.UDP, emptyUDP, d.asker}, {inet.TCP, emptyTCP, d.lab.Node},
	} {
		a := c.from.Probe(ctx, c.proto, c.to, lab.Options{})
		d.requests++
		if a.Outcome == lab.Failed {
			return fmt.Errorf("ask %s: %w", c.to, a.Err)
		}
		proto := strings.ToUpper(c.proto.String())
		err := d.expect(a.Outcome == lab.Refused, fmt.Sprintf("%-6s ── %s ──▶ empty %s  refused in %s", c.from.Name, proto, c.to,
			millis(a.RTT)), "refused", a.String())
		if err != nil {
			return err
		}
	}
	return d.reason(ctx)
}

// connection is an open connection to the endpoint behind Service web's port echo.
type connection struct {
	net.Conn
	lines  *bufio.Reader
	server string
}

func (d *demo) connect(ctx context.Context) (*connection, error) {
	conn, err := d.asker.Dial(ctx, inet.TCP, webEcho)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, lines: bufio.NewReader(conn)}
	greeting, err := c.read()
	if err == nil {
		var a lab.Answer
		a, err = lab.ParseAnswer(greeting)
		c.server = a.Server
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d.requests++
	return c, nil
}

func (c *connection) read() (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	return strings.TrimSpace(line), err
}

// say sends a line and expects it back.
func (d *demo) say(c *connection, line, statement string) error {
	_, err := fmt.Fprintln(c, line)
	got := ""
	if err == nil {
		got, err = c.read()
	}
	if err != nil {
		got = err.Error()
	}
	d.requests++
	return d.expect(got == line, statement, fmt.Sprintf("the line %q returned by %s", line, c.server), got)
}

func (d *demo) restart(ctx context.Context) error {
	c, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it has done its duty
	d.out.arrow(d.asker.Name, "one connection, kept open", "web "+webEcho.String())
	if err := d.say(c, "before", fmt.Sprintf("%s has the other end.", c.server)); err != nil {
		return err
	}
	d.out.command(fmt.Sprintf("kill -9 %d", d.daemon.Pid()))
	d.daemon.Kill()
	if err := d.say(c, "without", "Without kube-nftproxy, the connection continues."); err != nil {
		return err
	}
	if err := d.unattended(ctx); err != nil {
		return err
	}
	if err := d.adoption(ctx); err != nil {
		return err
	}
	return d.say(c, "after", fmt.Sprintf("The connection to %s continues.", c.server))
}

// unattended shows that the rules need no program.
func (d *demo) unattended(ctx context.Context) error {
	const some = 40
	a, err := d.ask(ctx, d.asker, web4, some)
	if err != nil {
		return err
	}
	total := 0
	for _, h := range d.remaining() {
		total += a.count[h.Name]
	}
	return d.expect(total == some, fmt.Sprintf("New connections are spread as before: %s.", a), "all answered", a.String())
}

// adoption starts the daemon again, which finds its tables as they should be.
func (d *demo) adoption(ctx context.Context) error {
	d.out.command("kube-nftproxy …")
	began := time.Now()
	if err := d.start(); err != nil {
		return err
	}
	var m numbers
	err := d.daemon.await(ctx, "the first sync", func(ctx context.Context) (err error) {
		if m, err = d.daemon.metrics(ctx); err == nil && m.adopted()+m.batches() == 0 {
			err = errors.New("no sync yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.expect(m.adopted() == 1 && m.batches() == 0,
		fmt.Sprintf("Ready %s after the start. The tables in the kernel are right, so the program sends nothing.", millis(time.Since(began))),
		"1 adoption and no batch", fmt.Sprintf("%s and %s", plural(m.adopted(), "adoption"), batches(m.batches())))
}

// remaining are the endpoints that stay.
func (d *demo) remaining() []*lab.Host {
	return slices.DeleteFunc(slices.Clone(d.endpoints), func(h *lab.Host) bool { return h == d.moved })
}
