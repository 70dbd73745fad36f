package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

const (
	// tryFor is the timeout of a connection.
	tryFor = time.Second
	// triesAtOnce is the number of concurrent attempts. mostTries is the number of all attempts.
	triesAtOnce, mostTries = 16, 128
)

// attempt is an endpoint to connect to.
type attempt struct {
	*view.Endpoint
	protocol string
}

// try connects to the endpoints of Services from this node, and stores the results. It reports whether all endpoints in
// use answer.
func try(ctx context.Context, v *view.Services) bool {
	var all []attempt
	for i := range v.Services {
		for j := range v.Services[i].Ports {
			p := &v.Services[i].Ports[j]
			for k := range p.Endpoints {
				switch e := &p.Endpoints[k]; {
				case p.Protocol != "tcp" && p.Protocol != "udp":
					e.Tried = "not tried: " + p.Protocol
				case len(all) == mostTries:
					e.Tried = fmt.Sprintf("not tried: more than %d endpoints", mostTries)
				default:
					all = append(all, attempt{e, p.Protocol})
				}
			}
		}
	}
	var group sync.WaitGroup
	limit := make(chan struct{}, triesAtOnce)
	for _, e := range all {
		how := connect
		if e.protocol == "udp" {
			how = send
		}
		group.Go(func() {
			limit <- struct{}{}
			e.Tried, e.Fails = how(ctx, e.Address)
			<-limit
		})
	}
	group.Wait()
	fine := true
	for _, e := range all {
		fine = fine && (!e.Fails || !e.Chosen())
	}
	return fine
}

// connect opens a TCP connection to an address, sends a segment of one byte and a full-size one, and describes the
// results.
func connect(ctx context.Context, address string) (what string, fails bool) {
	begin := time.Now()
	conn, err := (&net.Dialer{Timeout: tryFor}).DialContext(ctx, "tcp", address)
	if err != nil {
		return inShort(err, address), true
	}
	what = fmt.Sprintf("answers in %v", time.Since(begin).Round(time.Microsecond))
	size, err := fullSize(ctx, conn.(*net.TCPConn))
	switch {
	case errors.Is(err, errSilent):
		return fmt.Sprintf("%s, but full-size segments (%d bytes) are lost, so large transfers hang: compare the MTU of the interfaces and devices on the path "+
			"(ip link; tracepath -n)", what, size), true
	case errors.Is(err, unix.EPERM):
		what += " (full-size segments not tried: no CAP_NET_ADMIN)"
	}
	return what, false
}

// refusal is the time to wait for the rejection of a datagram.
const refusal = 300 * time.Millisecond

// send sends an empty datagram, and reports whether it was refused. A UDP server may not answer an empty datagram, so
// no answer is no failure.
func send(ctx context.Context, address string) (what string, fails bool) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err == nil {
		defer func() { _ = conn.Close() }()
		_, err = conn.Write(nil)
	}
	if err == nil {
		if err = conn.SetReadDeadline(time.Now().Add(refusal)); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return "no refusal (a UDP server need not answer)", false
		}
	}
	return inShort(err, address), true
}

// inShort describes the cause of an error of a connection to an address.
func inShort(err error, address string) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "connection refused: nothing listens on this port (check targetPort)"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		route := "the route"
		if at, err := netip.ParseAddrPort(address); err == nil {
			if device, _, err := (host.Routes{}).Out(at.Addr()); err == nil {
				route += " by " + device
			}
		}
		return fmt.Sprintf("no answer within %v: the pod is gone or hangs, its network or a NetworkPolicy drops "+
			"the packets, or %s is wrong", tryFor, route)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return "unreachable: this node has no route (or one of type blackhole or prohibit), or a router reports that " +
			"there is none"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "unreachable: this node has no address to connect from"
	}
	return "unreachable: " + err.Error()
}
