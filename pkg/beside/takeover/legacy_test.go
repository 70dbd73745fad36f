package takeover

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func openLegacy(t *testing.T) *xtables {
	t.Helper()
	s, err := openXtables(protocols[0])
	lab.Must(t, err)
	t.Cleanup(func() { s.close() })
	return s
}

// A change by another program between read and write is not lost: the kernel rejects the write, and the program reads
// the table again.
func TestATableThatChangesMeanwhile(t *testing.T) {
	const b = backend("legacy")
	lab.EnterNamespace(t)
	b.restore(t, "foreign-")
	kubeProxy(t, b, "iptables")
	s := openLegacy(t)
	old, err := s.read("filter")
	lab.Must(t, err)
	c, err := old.parse("filter")
	lab.Must(t, err)
	r := c.removal()
	without, _, err := old.without(c, &r)
	lab.Must(t, err)
	b.run(t, "", "iptables", "-w", "-A", "FORWARD", "-p", "tcp", "-j", "cali-FORWARD")
	changed := b.save(t)
	if _, err := s.replace("filter", without, len(c.entries)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("replacing a table that has changed: %v, want EAGAIN", err)
	}
	lab.Same(t, changed, b.save(t), "rules (-before +after)")
	tries := 0
	err = again(func() error {
		if tries++; tries < 3 {
			return unix.EAGAIN
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%d attempts, %v", tries, err)
	}
}

// A table with an unexpected layout causes an error, never a panic or a wrong table.
func TestUnexpectedLayouts(t *testing.T) {
	lab.EnterNamespace(t)
	backend("legacy").restore(t, "foreign-")
	good, err := openLegacy(t).read("filter")
	lab.Must(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	failed := 0
	for range 3000 {
		bad := *good
		bad.entries = slices.Clone(good.entries)
		switch random.IntN(3) {
		case 0:
			bad.entries = bad.entries[:random.IntN(len(bad.entries))]
		case 1:
			binary.NativeEndian.PutUint16(bad.entries[random.IntN(len(bad.entries)/8)*8:], uint16(random.Uint32()))
		case 2:
			bad.entries[random.IntN(len(bad.entries))] ^= byte(1 + random.IntN(255))
		}
		c, err := bad.parse("filter")
		if err == nil {
			r := c.removal()
			_, _, err = bad.without(c, &r)
		}
		switch {
		case errors.Is(err, errLayout):
			failed++
		case err != nil:
			t.Fatal(err)
		}
	}
	if failed < 750 {
		t.Errorf("%d of 3000 damaged tables were rejected", failed)
	}
	if c, err := good.parse("filter"); err != nil || len(c.rules) < 20 {
		t.Errorf("the undamaged table: %v", err)
	}
}

// The program waits for the lock of iptables: the holder may be about to write a table that it has read.
func TestTheLockIsWaitedFor(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	held, err := os.Create(name)
	lab.Must(t, err)
	if err := unix.Flock(int(held.Fd()), unix.LOCK_SH); err != nil { // a shared lock blocks only requests for an exclusive lock
		t.Fatal(err)
	}
	locked := make(chan error)
	go func() {
		unlock, err := lockXtables(name)
		if err == nil {
			unlock()
		}
		locked <- err
	}()
	select {
	case err := <-locked:
		t.Fatalf("got a lock that is held: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	held.Close()
	if err := <-locked; err != nil {
		t.Error(err)
	}
	if unlock, err := lockXtables(filepath.Join(t.TempDir(), "missing", "lock")); err != nil {
		t.Errorf("without the folder: %v", err)
	} else {
		unlock()
	}
}
