package netlink

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A socket is usable after a complete answer. After an abandoned, truncated or lost answer, it is broken: the rest of the answer could
// count as the next answer.
func TestIncompleteAnswersBreakTheSocket(t *testing.T) {
	say := func(typ uint16, seq uint32, payload ...byte) []byte {
		var e Encoder
		e.Begin(typ, 0, seq, 0)
		e.Buf = append(e.Buf, payload...)
		e.Finish(0)
		return e.Buf
	}
	late, one, done := say(1, 7), say(1, 1), say(unix.NLMSG_DONE, 1)
	refused := say(unix.NLMSG_ERROR, 1)
	refused[unix.NLMSG_HDRLEN] = 0xff
	copy(refused[unix.NLMSG_HDRLEN+1:], []byte{0xff, 0xff, 0xff})
	for name, c := range map[string]struct {
		replies  [][]byte
		leave    int
		messages int
		broken   bool
		want     error
	}{
		"whole":                   {replies: [][]byte{one, one, done}, messages: 3},
		"a late answer before":    {replies: [][]byte{late, one, done}, messages: 2},
		"refused":                 {replies: [][]byte{one, refused}, messages: 1, want: unix.EPERM},
		"stopped before its end":  {replies: [][]byte{one, one, done}, leave: 1, messages: 1, broken: true},
		"stopped at its end":      {replies: [][]byte{one, done}, leave: 2, messages: 2},
		"cut":                     {replies: [][]byte{one[:len(one)-1]}, broken: true, want: ErrTruncated},
		"without an end":          {replies: [][]byte{one}, messages: 1, broken: true, want: unix.EAGAIN},
		"only answers to another": {replies: [][]byte{late}, broken: true, want: unix.EAGAIN},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			lab.Must(t, err)
			s := &Socket{fd: pair[0], buf: make([]byte, readBuffer)}
			err = unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 1000})
			for _, r := range c.replies {
				err = errors.Join(err, unix.Sendto(pair[1], r, 0, nil))
			}
			lab.Must(t, err)
			messages := 0
			for m, failed := range s.Ask(1, unix.NLM_F_DUMP, 0, nil) {
				if err = failed; failed == nil && m.Seq == s.Seq {
					messages++
				}
				if c.leave > 0 && messages == c.leave {
					break
				}
			}
			if messages != c.messages || !errors.Is(err, c.want) || s.Broken != c.broken {
				t.Errorf("%d messages, %v, broken %v; want %d, %v, %v", messages, err, s.Broken, c.messages, c.want, c.broken)
			}
			if err := errors.Join(s.Close(), unix.Close(pair[1])); err != nil {
				t.Error(err)
			}
		})
	}
}
