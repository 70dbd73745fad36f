package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSCTPPacketsRoundTrip(t *testing.T) {
	init := newInit(1, 2)
	for name, want := range map[string]sctpPacket{
		"init":         init,
		"init ack":     init.answer([]byte("cookie")),
		"padded by 3":  init.answer([]byte("a")),
		"empty cookie": init.answer([]byte{}),
	} {
		got, ok := parseSCTP(want.bytes())
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(sctpPacket{})); !ok || diff != "" {
			t.Errorf("%s: ok=%v (-want +got):\n%s", name, ok, diff)
		}
	}
}

func TestSCTPRefusesBrokenPackets(t *testing.T) {
	good := newInit(1, 2).answer([]byte("cookie")).bytes()
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 1
		if _, ok := parseSCTP(bad); ok {
			t.Errorf("a wrong bit in byte %d was accepted", i)
		}
		if _, ok := parseSCTP(good[:i]); ok {
			t.Errorf("a packet cut to %d bytes was accepted", i)
		}
	}
}

func FuzzParseSCTP(f *testing.F) {
	f.Add(newInit(1, 2).answer([]byte("cookie")).bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseSCTP(b); ok && len(p.cookie) > len(b) {
			t.Errorf("cookie of %d bytes in a packet of %d", len(p.cookie), len(b))
		}
	})
}
