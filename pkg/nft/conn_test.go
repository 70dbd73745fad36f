package nft

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// The result of a batch depends only on the answers to the batch. An error means that the kernel changed nothing. An acknowledgement
// counts only if no error can be missing.
func TestOutcomesOfBatches(t *testing.T) {
	const first, ack = 100, 107
	said := func(seq uint32, errno unix.Errno) func(*answers) {
		return func(a *answers) {
			payload := append(binary.NativeEndian.AppendUint32(nil, -uint32(errno)), make([]byte, unix.NLMSG_HDRLEN)...)
			a.message(NewBatch(0), netlink.Message{Type: unix.NLMSG_ERROR, Flags: 0x100, Seq: seq, Payload: payload})
		}
	}
	lost := func(a *answers) { a.lost = unix.ENOBUFS }
	for name, c := range map[string]struct {
		answers []func(*answers)
		want    error
	}{
		"nothing":                           {nil, ErrUnknown},
		"acknowledged":                      {[]func(*answers){said(ack, 0)}, nil},
		"refused":                           {[]func(*answers){said(first+3, unix.EBUSY)}, unix.EBUSY},
		"refused as a whole":                {[]func(*answers){said(first, unix.EPERM)}, unix.EPERM},
		"refused at its end":                {[]func(*answers){said(ack+1, unix.ENOMEM)}, unix.ENOMEM},
		"refused, another one acknowledged": {[]func(*answers){said(first+3, unix.EEXIST), said(ack, 0)}, unix.EEXIST},
		"refused, and more was lost":        {[]func(*answers){lost, said(first+3, unix.ENOENT)}, unix.ENOENT},
		"acknowledged, but something lost":  {[]func(*answers){lost, said(ack, 0)}, ErrUnknown},
		"another message acknowledged":      {[]func(*answers){said(ack-1, 0)}, ErrUnknown},
		"a batch before acknowledged":       {[]func(*answers){said(first-1, 0)}, ErrUnknown},
		"a batch before refused":            {[]func(*answers){said(first-1, unix.EBUSY), said(ack, 0)}, nil},
		"a batch after refused":             {[]func(*answers){said(ack+2, unix.EBUSY), said(ack, 0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			conn, a := &Conn{&netlink.Socket{}}, answers{first: first, ack: ack}
			for _, answer := range c.answers {
				answer(&a)
			}
			if err := conn.outcome(&a); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if trust := a.lost == nil && !errors.Is(c.want, ErrUnknown); conn.socket.Broken == trust {
				t.Errorf("the socket counts as broken: %v", conn.socket.Broken)
			}
		})
	}
}
