package descriptors

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestSharesOfFiles: namespaces share half of the files, at most 32,768, and leave 128 for the program. The HTTP
// servers take a quarter.
func TestSharesOfFiles(t *testing.T) {
	for _, c := range []struct{ files, shared, clients int }{
		{0, 0, 1}, {100, 0, 6}, {200, 72, 12}, {256, 128, 16}, {1024, 512, 64}, {20_000, 10_000, 512}, {1 << 20, 32_768, 512}, {1 << 30, 32_768, 512},
	} {
		if shared, clients := Of(c.files).room.Limit(), clients(c.files); shared != c.shared || clients != c.clients {
			t.Errorf("%d files: %d are shared, %d clients of a server, want %d, %d", c.files, shared, clients, c.shared, c.clients)
		}
	}
	var limit unix.Rlimit
	lab.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if got, want := New().room.Limit(), Of(int(min(limit.Cur, 1<<30))).room.Limit(); got != want {
		t.Errorf("with %d files, %d are shared, want %d", limit.Cur, got, want)
	}
}

// TestTheReasonNamesTheLimit has the two errors, and their remedies.
func TestTheReasonNamesTheLimit(t *testing.T) {
	b := Of(1024) // 512 are shared; 8 belong to each namespace, and one namespace gets 24
	if b.Take("a", 24) != room.None || b.Taken() != 24 {
		t.Fatalf("%d descriptors are taken, want 24", b.Taken())
	}
	err := b.Error(b.Take("a", 1), "a")
	if err == nil || !strings.Contains(err.Error(), "namespace a has used its share") || !strings.Contains(err.Error(), "24 of 512") {
		t.Errorf("above the share: %v", err)
	}
	for _, n := range strings.Split("bcdefghijklmnop", "") {
		b.Take(n, 24)
	}
	err = b.Error(b.Take("z", 9), "z")
	if err == nil || strings.Contains(err.Error(), "namespace z") || !strings.Contains(err.Error(), "512") || !strings.Contains(err.Fix(), "limit of open files") {
		t.Errorf("above the limit of the node: %v; %s", err, err.Fix())
	}
	if strings.Contains(Of(1<<20).Error(room.OfNode, "z").Fix(), "open files") {
		t.Error("more files would not help")
	}
	if b.Take("z", 8) != room.None {
		t.Error("a namespace does not get its own part")
	}
	b.Give("a", 24)
	if b.Take("z", 1) != room.None {
		t.Error("no descriptor after others were given back")
	}
}
