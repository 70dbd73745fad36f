package conntrack

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// After a truncated or missing reply, a pass fails. It neither blocks nor treats a partial reply as complete. The
// next pass, with new sockets, deletes the rest.
func TestRepliesThatAreCutOrLost(t *testing.T) {
	for length, want := range map[uint32]error{0: unix.EAGAIN, 4: netlink.ErrTruncated, 100: netlink.ErrTruncated, 250: netlink.ErrTruncated} {
		enterNamespace(t)
		table := openTable(t)
		insert(t, table, synthetic(inet.UDP, 10, 100))
		program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: length}}
		if err := unix.SetsockoptSockFprog(table.read.FD(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &program[0]}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		out, err := table.Delete(t.Context(), inet.IPv4, UDP, changed(10).Stale)
		if !errors.Is(err, want) || time.Since(start) > 5*time.Second {
			t.Errorf("replies truncated after %d bytes: %+v, %v after %v; want %v", length, out, err, time.Since(start), want)
		}
		again, err := openTable(t).Delete(t.Context(), inet.IPv4, UDP, changed(10).Stale)
		if err != nil || out.Deleted+again.Deleted != 100 {
			t.Errorf("after replies truncated after %d bytes: %+v and %+v, %v; want 100 deleted", length, out, again, err)
		}
	}
}
