package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Challenger sends segments to the clients of deleted entries, so that they answer. Such a segment has the flags SYN and ACK, and the address of the
// Service as its source. A client with an established connection answers with an ACK, regardless of the sequence numbers (a challenge ACK, RFC 5961,
// section 4.2). The rules then translate this ACK, and the client gets its reset. Connection tracking creates no entry for a segment with SYN and
// ACK. With such an entry, the kernel would not evaluate the rules for the client's ACK.
type Challenger struct{ sockets [2]int }

// errNoRaw is the reason why clients cannot be challenged.
var errNoRaw = errors.New("the capability NET_RAW is missing: clients of terminated connections get their reset only after their next segment; " +
	"add NET_RAW to the container's securityContext.capabilities, or set the value gone instead of at-once")

// OpenChallenger opens raw sockets in the network namespace of the calling thread. The process needs CAP_NET_RAW. The sockets receive nothing.
func OpenChallenger() (*Challenger, error) {
	c := &Challenger{}
	for f, domain := range [2]int{inet.IPv4: unix.AF_INET, inet.IPv6: unix.AF_INET6} {
		s, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		switch {
		case err == nil:
			c.sockets[f] = s
			continue
		case domain == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT): // a kernel without IPv6 has no such flows
			c.sockets[f] = -1
			continue
		case errors.Is(err, unix.EPERM):
			err = errNoRaw
		}
		if f > 0 {
			_ = unix.Close(c.sockets[0])
		}
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	return c, nil
}

// Close closes the sockets.
func (c *Challenger) Close() error {
	var err error
	for _, s := range c.sockets {
		if s >= 0 {
			err = errors.Join(err, unix.Close(s))
		}
	}
	return err
}

// Challenge sends one segment to the client of a flow.
func (c *Challenger) Challenge(f *Flow) error {
	from, to := f.Destination, f.Source
	var at unix.Sockaddr
	if to.Addr().Is6() {
		at = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	} else {
		at = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	if err := unix.Sendto(c.sockets[inet.FamilyOf(to.Addr())], segment(from, to), 0, at); err != nil {
		return fmt.Errorf("send a segment to %s: %w", to, err)
	}
	return nil
}

// segment returns a packet with the TCP flags SYN and ACK, and without data. For IPv4, the kernel sets identification and checksum of the header.
func segment(from, to netip.AddrPort) []byte {
	const header, flags, hops = 20, 1<<1 | 1<<4, 64
	src, dst := from.Addr().AsSlice(), to.Addr().AsSlice()
	tcp := make([]byte, 0, header)
	tcp = binary.BigEndian.AppendUint16(tcp, from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = append(tcp, make([]byte, 8)...) // sequence and acknowledgement numbers: any
	tcp = append(tcp, header/4<<4, flags, 0, 0, 0, 0, 0, 0)
	var ip []byte
	if from.Addr().Is4() {
		ip = []byte{4<<4 | header/4, 0, 0, 2 * header, 0, 0, 1 << 6 /* do not fragment */, 0, hops, unix.IPPROTO_TCP, 0, 0}
	} else {
		ip = []byte{6 << 4, 0, 0, 0, 0, header, unix.IPPROTO_TCP, hops}
	}
	ip = append(append(ip, src...), dst...)
	sum := uint32(unix.IPPROTO_TCP + header)
	for _, b := range [][]byte{src, dst, tcp} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return append(ip, tcp...)
}

// terminator is the kernel's table for [Desired.Terminate]. After the deletion of entries, it challenges their clients if [Departed.AtOnce] is true.
type terminator struct {
	*Netlink
	open       func() (*Challenger, error)
	challenged func(f inet.Family, n int, err error)
	challenger *Challenger
	// waiting are flows that the next batch deletes.
	waiting []Flow
}

// Delete implements [Table].
func (t *terminator) Delete(ctx context.Context, f inet.Family, s Selection, stale func(*Flow) bool) (Outcome, error) {
	t.waiting = t.waiting[:0]
	t.deleted = func() { t.challenge(f) }
	return t.Netlink.Delete(ctx, f, s, func(flow *Flow) bool {
		yes := stale(flow)
		if yes && flow.AtOnce && flow.Established {
			t.waiting = append(t.waiting, *flow)
		}
		return yes
	})
}

// challenge challenges the clients of the flows that were just deleted.
func (t *terminator) challenge(f inet.Family) {
	if len(t.waiting) == 0 {
		return
	}
	var failed error
	if t.challenger == nil {
		t.challenger, failed = t.open()
	}
	n := 0
	for i := range t.waiting {
		if t.challenger == nil {
			break
		}
		if err := t.challenger.Challenge(&t.waiting[i]); err == nil {
			n++
		} else if failed == nil {
			failed = err
		}
	}
	t.waiting = t.waiting[:0]
	t.challenged(f, n, failed)
}

// Close closes all sockets.
func (t *terminator) Close() error {
	err := t.Netlink.Close()
	if t.challenger != nil {
		err = errors.Join(err, t.challenger.Close())
	}
	return err
}
