package apply

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// heard waits until the listener hears a foreign commit.
func heard(t testing.TB, k *Kernel) {
	t.Helper()
	select {
	case <-k.Heard():
	case <-time.After(10 * time.Second):
		t.Fatal("the listener heard no foreign commit")
	}
}

func TestForeignCommitsHaveAnAuthor(t *testing.T) {
	k, p := synced(t)
	k.others.heard = make(chan struct{}, 100) // room for every commit
	lab.Must(t, k.Listen())
	run(t, "nft", "add table ip foreign")
	heard(t, k)
	first := k.Author().String()
	if !strings.HasPrefix(first, "nft (pid ") {
		t.Errorf("Author() = %q after nft has made a table", first)
	}
	s := everything(2, 6, 0, false)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	lab.Must(t, k.Renew(p, 0))
	run(t, "nft", "delete table ip foreign")
	times := 0
	for ; k.Author().String() == first || !strings.HasPrefix(k.Author().String(), "nft (pid "); times++ {
		heard(t, k)
	}
	if times += len(k.Heard()); times != 1 {
		t.Errorf("%d commits were heard, want one by nft: the listener must not hear commits of this process", times)
	}
}

// TestALargeForeignChangeIsHeard: the kernel sends a listener a message about every element. These messages must not overrun the listener's queue.
func TestALargeForeignChangeIsHeard(t *testing.T) {
	k, _ := synced(t)
	lab.Must(t, k.Listen())
	var text strings.Builder
	text.WriteString("table ip foreign { set s { type ipv4_addr; elements = { 10.0.0.0")
	for i := 1; i < 20000; i++ {
		fmt.Fprintf(&text, ", 10.0.%d.%d", i>>8, i&255)
	}
	text.WriteString(" }; }; }\n")
	file := t.TempDir() + "/large.nft"
	lab.Must(t, os.WriteFile(file, []byte(text.String()), 0o600))
	run(t, "nft", "-f", file)
	heard(t, k)
	if got := k.Author().String(); !strings.HasPrefix(got, "nft (pid ") {
		t.Errorf("Author() = %q after nft has added 20,000 elements", got)
	}
}

// TestListeningIsTriedAgain: if Listen fails because no file descriptor is free, CheckRuleset opens the listener later.
func TestListeningIsTriedAgain(t *testing.T) {
	lab.EnterNamespace(t)
	k := open(t)
	p := plan.New(options())
	cluster(p)
	withoutFiles(t, func() {
		if err := k.Listen(); !errors.Is(err, unix.EMFILE) {
			t.Fatalf("Listen() = %v, want %v", err, unix.EMFILE)
		}
		mustSync(t, k, p, Full)
		if _, err := k.CheckRuleset(); err != nil {
			t.Error(err)
		}
	})
	if _, err := k.CheckRuleset(); err != nil {
		t.Error(err)
	}
	run(t, "nft", "add table ip others")
	heard(t, k)
	if author := k.Author().String(); !strings.HasPrefix(author, "nft ") {
		t.Errorf("changed by %q, want nft", author)
	}
}

// withoutFiles calls f while this process cannot open any file.
func withoutFiles(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	lab.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	set := func(l unix.Rlimit) {
		lab.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &l))
	}
	set(unix.Rlimit{Cur: 3, Max: before.Max})
	defer set(before)
	f()
}
