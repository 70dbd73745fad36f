package netlink

import (
	"errors"
	"testing"
)

// A truncated buffer yields an error after the complete messages. Only padding may be missing at the end.
func TestTruncatedMessagesAreDetected(t *testing.T) {
	var e Encoder
	e.Begin(1, 0, 3, 2)
	e.Attr(7, []byte("four"))
	e.Buf = append(e.Buf, 5, 0, 8, 0, 'x')
	e.Finish(0)
	one := e.Buf
	padded := append(append([]byte{}, one...), make([]byte, align(len(one))-len(one))...)
	two := append(padded, one...)
	for n := range len(two) + 1 {
		whole, err := 0, error(nil)
		for m, failed := range Messages(two[:n]) {
			if err = failed; failed == nil && m.Type == 1 && m.Seq == 3 && m.Family() == 2 {
				whole++
			}
		}
		wanted := (n + len(padded) - len(one)) / len(padded)
		cut := n > wanted*len(padded)
		if whole != wanted || errors.Is(err, ErrTruncated) != cut {
			t.Errorf("%d bytes of two messages: %d messages, %v; want %d, truncated %v", n, whole, err, wanted, cut)
		}
	}
}
