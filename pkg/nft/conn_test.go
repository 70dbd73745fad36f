package nft

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// The result of a batch depends only on the answers to the batch. An error means that the kernel changed nothing. An acknowledgement
// counts only if no error can be missing.
func TestOutcomesOfBatches(t *testing.T) {
	const first, ack = 100, 107
	type answer struct {
		netlink.Message
		err error
	}
	said := func(seq uint32, errno unix.Errno) answer {
		payload := append(binary.NativeEndian.AppendUint32(nil, -uint32(errno)), make([]byte, unix.NLMSG_HDRLEN)...)
		return answer{Message: netlink.Message{Type: unix.NLMSG_ERROR, Flags: 0x100, Seq: seq, Payload: payload}}
	}
	lost := answer{err: unix.ENOBUFS}
	for name, c := range map[string]struct {
		answers []answer
		want    error
	}{
		"nothing":                           {nil, ErrUnknown},
		"acknowledged":                      {[]answer{said(ack, 0)}, nil},
		"refused":                           {[]answer{said(first+3, unix.EBUSY)}, unix.EBUSY},
		"refused as a whole":                {[]answer{said(first, unix.EPERM)}, unix.EPERM},
		"refused at its end":                {[]answer{said(ack+1, unix.ENOMEM)}, unix.ENOMEM},
		"refused, another one acknowledged": {[]answer{said(first+3, unix.EEXIST), said(ack, 0)}, unix.EEXIST},
		"refused, and more was lost":        {[]answer{lost, said(first+3, unix.ENOENT)}, unix.ENOENT},
		"acknowledged, but something lost":  {[]answer{lost, said(ack, 0)}, ErrUnknown},
		"another message acknowledged":      {[]answer{said(ack-1, 0)}, ErrUnknown},
		"a batch before acknowledged":       {[]answer{said(first-1, 0)}, ErrUnknown},
		"a batch before refused":            {[]answer{said(first-1, unix.EBUSY), said(ack, 0)}, nil},
		"a batch after refused":             {[]answer{said(ack+2, unix.EBUSY), said(ack, 0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			conn := &Conn{&netlink.Socket{}}
			err := conn.outcome(NewBatch(0), first, ack, func(yield func(netlink.Message, error) bool) {
				for _, a := range c.answers {
					yield(a.Message, a.err)
				}
			})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			missing := slices.ContainsFunc(c.answers, func(a answer) bool { return a.err != nil })
			if trust := !missing && !errors.Is(c.want, ErrUnknown); conn.socket.Broken == trust {
				t.Errorf("the socket counts as broken: %v", conn.socket.Broken)
			}
		})
	}
}
