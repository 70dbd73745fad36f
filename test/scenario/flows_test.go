package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Source ports of flows. Probes use lower ones.
const (
	firstFlowPort = 61000
	lastFlowPort  = 65535
)

func TestFlowLinesThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		"client 10.96.0.10:53/udp flow=a":                        "want a name, UDP and an outcome",
		"client 10.96.0.10:53/udp flow= refused":                 "want a name, UDP and an outcome",
		"client 10.96.0.10:80/tcp flow=a = pod-0 from node":      "want a name, UDP and an outcome",
		"client 10.96.0.10:53/udp flow=a = pod-0":                "which address the servers see",
		"client 10.96.0.10:53/udp flow=a refused for ever":       "follows the outcome",
		"client 10.96.0.10:53/udp flow=a refused | kube-proxy: ": "follows the bar",
	} {
		if _, err := parsePackets(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parsePackets(%q) = %v, want an error with %q", text, err, want)
		}
	}
	lines, err := parsePackets("client 10.96.0.10:53/udp flow=a refused | kube-proxy: = pod-0 from node (a difference)")
	if err != nil || len(lines) != 1 || lines[0].flow != "a" || lines[0].theirs.flow != "a" {
		t.Errorf("got %+v, %v; want one line, which is the same flow for both", lines, err)
	}
}

// flow is a UDP client that keeps sending from one port, and the last server that replied.
type flow struct {
	conn   *net.UDPConn
	server string
}

// goOn sends in a line's flow, which the first such line opens. The flow must stay with its server as long as the line names it.
func (tr *traffic) goOn(h *lab.Host, l line) error {
	key := fmt.Sprintf("%s %s %s %s", l.from, l.source, l.to, l.flow)
	f, open := tr.flows[key]
	if !open {
		conn, err := dialFlow(h, l, firstFlowPort+len(tr.flows))
		if err != nil {
			return err
		}
		if tr.flows == nil {
			tr.flows = map[string]*flow{}
		}
		f = &flow{conn: conn}
		tr.flows[key] = f
	}
	patient, each := time.Now(), patience
	if tr.settled == nil {
		// A datagram is lost if its flow is deleted before the reply.
		patient, each = patient.Add(patience), patience/5
	}
	for {
		err := tr.inFlow(h, l, f, each)
		if err == nil || time.Now().After(patient) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func dialFlow(h *lab.Host, l line, port int) (conn *net.UDPConn, err error) {
	from := l.source
	if !from.IsValid() {
		from = h.Addr(l.to.Addr())
	}
	if port > lastFlowPort {
		return nil, errors.New("too many flows")
	}
	err = h.Do(func() error {
		conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, uint16(port))), net.UDPAddrFromAddrPort(l.to))
		return err
	})
	return conn, err
}

// inFlow expects a line's outcome from a few packets.
func (tr *traffic) inFlow(h *lab.Host, l line, f *flow, timeout time.Duration) error {
	tries := 3
	if l.outcome == lab.TimedOut {
		tries, timeout = 1, nothingIn
	}
	for range tries {
		a := f.ask(timeout)
		if l.outcome != lab.Answered {
			if a.Outcome != l.outcome {
				return fmt.Errorf("got %q (%v)", a, a.Err)
			}
			continue
		}
		s, err := tr.answer(h, l, a)
		if err != nil {
			return err
		}
		mayStay := slices.ContainsFunc(l.servers, func(s server) bool { return s.name == f.server })
		if mayStay && s.name != f.server {
			return fmt.Errorf("the flow has moved from %s to %s", f.server, s.name)
		}
		f.server = s.name
	}
	return nil
}

// ask sends one datagram and waits for a reply.
func (f *flow) ask(timeout time.Duration) lab.Answer {
	buf := make([]byte, 512)
	n := 0
	err := f.conn.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		err = f.send()
	}
	if err == nil {
		n, err = f.conn.Read(buf)
	}
	switch {
	case err == nil:
		a, err := lab.ParseAnswer(strings.TrimSpace(string(buf[:n])))
		if err != nil {
			return lab.Answer{Err: err}
		}
		a.Outcome = lab.Answered
		return a
	case errors.Is(err, syscall.ECONNREFUSED):
		return lab.Answer{Outcome: lab.Refused, Err: err}
	case errors.Is(err, syscall.EHOSTUNREACH):
		return lab.Answer{Outcome: lab.Unreachable, Err: err}
	case isTimeout(err):
		return lab.Answer{Outcome: lab.TimedOut, Err: err}
	}
	return lab.Answer{Err: err}
}

// send sends a datagram. If the socket holds the rejection of an earlier packet, the first write returns that error and sends
// nothing, so send writes again. If rules reject or drop a local packet, the write fails with EPERM. send ignores this error: the
// following read shows whether the packet was rejected or dropped.
func (f *flow) send() error {
	_, err := f.conn.Write([]byte("who\n"))
	if errors.Is(err, syscall.ECONNREFUSED) {
		_, err = f.conn.Write([]byte("who\n"))
	}
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return err
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

// notOfFlows matches conntrack entries of a protocol, except those of flows.
type notOfFlows struct{ protocol uint8 }

func (m notOfFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == m.protocol && f.Forward.SrcPort < firstFlowPort
}

// settleFlows waits after [pipeline.load] until stale flows are deleted.
func (p *pipeline) settleFlows() error {
	// The request for flows follows the sync that load has awaited.
	if err := p.settle(); err != nil {
		return err
	}
	last := p.flows.Request(&conntrack.Desired{})
	return lab.Await(context.Background(), 10*patience, func() error { // passes are rare if each takes long
		if handled := p.flows.Handled(); handled < last {
			return fmt.Errorf("%d of %d requests for flows are done", handled, last)
		}
		return nil
	})
}
