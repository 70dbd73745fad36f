//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// testOutOfWindow has a server send a packet with an old sequence number. If it reached the client without reverse translation,
// the client would not know the connection, and reset the server's.
func testOutOfWindow(t *testing.T, w *world, _ *daemon) {
	server := w.Remotes[0]
	serveEcho(t, echoPort, server)
	svc := echoService()
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.Ports[0].NodePort = 30007
	w.apply(svc)
	w.apply(echoSlices(server)...)
	to := w.clusterIPs("echo")
	for _, addr := range w.Node.Addrs() {
		to = append(to, netip.AddrPortFrom(addr, 30007))
	}
	for _, from := range []*lab.Host{w.Pods[2], w.Client} {
		for _, addr := range to {
			inject := listenRaw(t, server, server.Addr(addr.Addr()))
			c := w.converse([]netip.AddrPort{addr}, from)[0]
			must(t, inject.send(c))
			lab.Check(t, inject.quiet(c), "%s -> %s, after a packet out of the window", from.Name, addr)
		}
	}
}

// injector captures and sends TCP packets beside the kernel of a host.
type injector struct {
	conn net.PacketConn
	own  netip.Addr
}

func listenRaw(t *testing.T, h *lab.Host, own netip.Addr) injector {
	t.Helper()
	network := "ip4:tcp"
	if own.Is6() {
		network = "ip6:tcp"
	}
	i := injector{own: own}
	must(t, h.Do(func() (err error) {
		i.conn, err = net.ListenPacket(network, own.String())
		return err
	}))
	t.Cleanup(func() { _ = i.conn.Close() })
	return i
}

const (
	pshAck = 0x18
	ackBit = 0x10
	synBit = 0x02
	rstBit = 0x04
)

// send exchanges a line, reads the sequence numbers from a packet of the client, and sends a packet with an old number.
func (i injector) send(c conversation) error {
	const longAgo = 100_000 // bytes; more than the client's window
	if err := errors.Join(c.goOn(), i.conn.SetReadDeadline(time.Now().Add(patience))); err != nil {
		return err
	}
	got, from, err := i.receive(func(segment []byte) bool { return segment[13]&ackBit != 0 && segment[13]&synBit == 0 })
	if err != nil {
		return err
	}
	answer := make([]byte, 20, 27)
	copy(answer[0:], got[2:4])
	copy(answer[2:], got[0:2])
	binary.BigEndian.PutUint32(answer[4:], binary.BigEndian.Uint32(got[8:])-longAgo)
	copy(answer[8:], got[4:8])
	answer[12], answer[13] = 5<<4, pshAck
	copy(answer[14:], got[14:16])
	answer = append(answer, "boom!!!"...)
	addr, _ := netip.AddrFromSlice(from.IP)
	binary.BigEndian.PutUint16(answer[16:], checksum(i.own, addr.Unmap(), answer))
	_, err = i.conn.WriteTo(answer, from)
	return err
}

// receive returns the first segment to the server's port for which want returns true.
func (i injector) receive(want func([]byte) bool) ([]byte, *net.IPAddr, error) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := i.conn.ReadFrom(buf)
		if err != nil {
			return nil, nil, fmt.Errorf("see a packet of the client: %w", err)
		}
		if n >= 20 && binary.BigEndian.Uint16(buf[2:]) == echoPort && want(buf[:n]) {
			return buf[:n], from.(*net.IPAddr), nil
		}
	}
}

// quiet returns an error if the client sends a reset before its next line, or gets no reply to that. A reaction to an earlier
// packet arrives first.
func (i injector) quiet(c conversation) error {
	const last = "the last words"
	if err := c.say(last); err != nil {
		return err
	}
	segment, _, err := i.receive(func(s []byte) bool { return s[13]&rstBit != 0 || bytes.Contains(s, []byte(last)) })
	if err == nil && segment[13]&rstBit != 0 {
		err = errors.New("the client reset the connection")
	}
	return err
}

// checksum returns that of a TCP segment.
func checksum(from, to netip.Addr, segment []byte) uint16 {
	const tcp = 6
	data := append(append(from.AsSlice(), to.AsSlice()...), 0, tcp, byte(len(segment)>>8), byte(len(segment)))
	data = append(data, segment...)
	if len(data)%2 == 1 {
		data = append(data, 0)
	}
	sum := uint32(0)
	for ; len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
