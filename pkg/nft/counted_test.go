package nft

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestReportsOfDeletions: the kernel needs eight kilobytes for each report. A batch with more deletions than the limit requests none.
func TestReportsOfDeletions(t *testing.T) {
	set := &Set{Table: "t", Name: "s", Family: inet.IPv4, Counter: true}
	for name, c := range map[string]struct {
		flushed []int
		tooMany bool
	}{
		"at the limit":          {[]int{MostReports}, false},
		"above the limit":       {[]int{MostReports + 1}, true},
		"two below the limit":   {[]int{MostReports / 2, MostReports / 2}, false},
		"above it only by both": {[]int{MostReports/2 + 1, MostReports / 2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, want := NewBatch(0), len(c.flushed)
			b.Report = true
			for _, n := range c.flushed {
				b.FlushSet(set, n)
			}
			lab.Same(t, c.tooMany, b.Reports > MostReports, "too many")
			if finish(b); c.tooMany {
				b.reserve(nil) // it reserves no space
				want = 0
			}
			lab.Same(t, want, requests(b.Buf), "messages request reports")
		})
	}
}

// requests counts the messages of a batch that request reports.
func requests(batch []byte) (n int) {
	for len(batch) >= unix.NLMSG_HDRLEN {
		if binary.NativeEndian.Uint16(batch[6:])&unix.NLM_F_ECHO != 0 {
			n++
		}
		batch = batch[(binary.NativeEndian.Uint32(batch)+3)&^3:]
	}
	return n
}
