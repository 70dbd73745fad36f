package conntrack

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// attributes returns the attributes of a flow as the kernel sends them.
func attributes(f Flow) []byte {
	var b netlink.Encoder
	appendTuple(&b, attrTupleOrig, f.Protocol, f.Source, f.Destination)
	appendTuple(&b, attrTupleReply, f.Protocol, f.Server, f.Client)
	var status uint32
	if f.Replied {
		status |= statusReplied
	}
	if f.DNAT {
		status |= statusDNAT
	}
	b.Uint32(attrStatus, status)
	if f.Zone != 0 {
		b.Attr(attrZone, binary.BigEndian.AppendUint16(nil, f.Zone))
	}
	if f.Established {
		info := b.Nest(attrProtoInfo)
		tcp := b.Nest(protoInfoTCP)
		b.Attr(protoTCPState, []byte{tcpEstablished})
		b.Attr(protoTCPFlags, []byte{0, 0})
		flags := byte(1)
		if f.Unacknowledged {
			flags |= tcpUnacknowledged
		}
		b.Attr(protoTCPReplyFlags, []byte{flags, 0})
		b.Unnest(tcp)
		b.Unnest(info)
	}
	if f.Expires > 0 {
		b.Uint32(attrTimeout, f.Expires)
	}
	b.Uint32(attrID, f.ID)
	return b.Buf
}

func TestParse(t *testing.T) {
	v4, v6 := flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:5353"), flow(inet.TCP, "[fd00::1]:53", "[fd00::2]:5353")
	v4.Replied, v4.ID, v6.Zone, v6.ID = true, 7, 9, 1<<31
	v6.Established, v6.Unacknowledged, v6.Expires = true, true, 299
	other := v6
	other.Unacknowledged = false
	for _, want := range []Flow{v4, v6, other} {
		var got Flow
		e, ok := parse(attributes(want), &got)
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(want.Source)); diff != "" || !ok {
			t.Errorf("%v (-want +got):\n%s", ok, diff)
		}
		if len(e.tuple) == 0 || len(e.id) == 0 || len(e.zone) == 0 != (want.Zone == 0) {
			t.Errorf("identifying attributes: %v", e)
		}
	}
}

// Truncated attributes never yield an entry without a tuple: its deletion would delete the whole table.
func TestParseRejectsTruncatedEntries(t *testing.T) {
	whole := attributes(flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:5353"))
	for n := range whole {
		var f Flow
		if e, ok := parse(whole[:n], &f); ok {
			t.Errorf("%d of %d bytes are parsed as %+v, %v", n, len(whole), f, e)
		}
	}
}

// Without the kernel's modules, every request fails with EINVAL. Old kernels return the same error for a request with
// a filter, so the pass retries without one. The error names the missing modules.
func TestAbsentModulesAreNamed(t *testing.T) {
	n, kernel := withKernel(t)
	answered := make(chan error, 1)
	go func() {
		buf := make([]byte, 1<<10)
		for seq := range uint32(2) {
			if _, err := unix.Read(kernel, buf); err != nil {
				answered <- err
				return
			}
			refusal := reply(unix.NLMSG_ERROR, 0, code(unix.EINVAL))
			binary.NativeEndian.PutUint32(refusal[8:], seq+1)
			if _, err := unix.Write(kernel, refusal); err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	_, err := n.Delete(t.Context(), inet.IPv4, UDP, func(*Flow) bool { return true })
	if !errors.Is(err, errAbsent) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("Delete() = %v, want the error about missing modules", err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// withKernel returns a table, and a socket on which the test replies in place of the kernel.
func withKernel(t *testing.T) (n *Netlink, kernel int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	lab.Must(t, err)
	n = &Netlink{write: &netlink.Socket{}}
	if n.read, err = netlink.Open(); err == nil {
		err = unix.Dup3(pair[0], n.read.FD(), unix.O_CLOEXEC)
	}
	if err = errors.Join(err, unix.Close(pair[0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.read.Close()
		_ = unix.Close(pair[1])
	})
	return n, pair[1]
}

func reply(typ, flags uint16, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, 1)
	return append(append(b, 0, 0, 0, 0), payload...)
}

func code(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }

func TestEndOfDump(t *testing.T) {
	one := append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, attributes(flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:5353"))...)
	entry, done := reply(0, unix.NLM_F_MULTI, one), reply(unix.NLMSG_DONE, unix.NLM_F_MULTI, code(0))
	for _, tc := range []struct {
		name    string
		replies [][]byte
		seen    int
		want    error
	}{
		{name: "two entries", replies: [][]byte{append(entry, entry...), done}, seen: 2},
		{name: "none", replies: [][]byte{done}},
		{
			name: "interrupted", want: errInterrupted, seen: 2,
			replies: [][]byte{reply(0, unix.NLM_F_DUMP_INTR, one), append(entry, done...)},
		},
		{name: "interrupted at the end", want: errInterrupted, replies: [][]byte{reply(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, code(0))}},
		{name: "no such filter", want: unix.EOPNOTSUPP, replies: [][]byte{reply(unix.NLMSG_ERROR, 0, code(unix.EOPNOTSUPP))}},
		{name: "failed at the end", want: unix.ENOMEM, seen: 1, replies: [][]byte{entry, reply(unix.NLMSG_DONE, 0, code(unix.ENOMEM))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, kernel := withKernel(t)
			for _, r := range tc.replies {
				lab.Must(t, lab.Err(unix.Write(kernel, r)))
			}
			var out Outcome
			err := n.dump(t.Context(), All, func(*Flow) bool { return false }, &out)
			if !errors.Is(err, tc.want) || out.Seen != tc.seen {
				t.Errorf("%d entries, %v; want %d, %v", out.Seen, err, tc.seen, tc.want)
			}
		})
	}
}
