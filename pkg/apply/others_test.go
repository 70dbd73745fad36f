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

// listen makes k listen as it does after a foreign commit.
func listen(t testing.TB, k *Kernel) {
	t.Helper()
	lab.Must(t, k.Listen())
	k.others.active = true
	if _, err := k.CheckRuleset(); err != nil || !k.others.joined {
		t.Fatalf("joined: %t, %v", k.others.joined, err)
	}
}

// withoutListening calls f while the listener is not in the kernel's group, as during a commit of this program.
func withoutListening(t testing.TB, k *Kernel, f func()) {
	t.Helper()
	if k.others.joined {
		lab.Must(t, k.others.listener.Leave())
		defer k.others.join()
	}
	f()
}

// TestListeningEnds: the listener is a member of the kernel's group only for some time after a foreign commit, or if there
// are too many elements for a check.
func TestListeningEnds(t *testing.T) {
	k, p := synced(t)
	lab.Must(t, k.Listen())
	now := time.Now()
	k.Now = func() time.Time { return now }
	expect := func(when string, joined bool) {
		t.Helper()
		if _, err := k.CheckRuleset(); err != nil || k.others.joined != joined {
			t.Errorf("joined: %t, %v %s, want %t", k.others.joined, err, when, joined)
		}
	}
	expect("before a foreign commit", false)
	run(t, "nft", "add table ip foreign")
	k.Doubt()
	mustSync(t, k, p, Adopted)
	expect("after a foreign commit", true)
	now = now.Add(attention - 1)
	expect("before the end of the time", true)
	run(t, "nft", "delete table ip foreign")
	heard(t, k)
	if author := k.Author().String(); !strings.HasPrefix(author, "nft (pid ") {
		t.Errorf("Author() = %q after the second foreign commit", author)
	}
	expect("after another foreign commit", true)
	now = now.Add(attention - 1)
	expect("in the time that the second commit has begun", true)
	s := everything(2, 6, 0, false)
	p.Set(s.Name, s)
	k.Doubt()
	lab.Must(t, lab.Err(k.Sync(p)))
	expect("after a commit of this program", true)
	now = now.Add(attention + 1)
	expect("in quiet times", false)
	k.elements = mostChecked + 1
	expect("with many elements", true)
}

func TestForeignCommitsHaveAnAuthor(t *testing.T) {
	k, p := synced(t)
	k.others.heard = make(chan struct{}, 100) // room for every commit
	listen(t, k)
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
	listen(t, k)
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
	k.others.active = true
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
