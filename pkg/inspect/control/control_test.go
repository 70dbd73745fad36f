package control

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// served starts a server that answers /who with a name, and returns when it answers.
func served(t *testing.T, path, name string) (stop func()) {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(page, text string, err error) {
		mux.Handle("GET "+page, Answer(func(context.Context, url.Values) (string, error) { return text, err }))
	}
	answer("/who", name, nil)
	answer("/missing", "", NotFound("no such thing"))
	answer("/broken", "", errors.New("it is broken"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, path, mux)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	deadline := time.Now().Add(10 * time.Second)
	for {
		if got, err := who(t, path); err == nil && got == name {
			return stop
		} else if time.Now().After(deadline) {
			t.Fatalf("%s doesn't answer: %q, %v", name, got, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func who(t *testing.T, path string) (name string, err error) {
	return name, NewClient(path).Get(t.Context(), "who", &name)
}

func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "folder", "control.sock") }

func TestOnlyTheOwnerMayConnect(t *testing.T) {
	defer unix.Umask(unix.Umask(0)) // the least restrictive one
	path := socketPath(t)
	stop := served(t, path, "one")
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v, %v, want 0600", info.Mode(), err)
	}
	stop()
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) > 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

// TestASocketOfAKilledProgramIsReplaced leaves a socket without a listener.
func TestASocketOfAKilledProgramIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	lab.Must(t, err)
	l.SetUnlinkOnClose(false)
	lab.Must(t, l.Close())
	if _, err := who(t, path); err == nil || !strings.Contains(err.Error(), "kube-nftproxy does not run") {
		t.Errorf("without a program: %v", err)
	}
	served(t, path, "next")
}

// TestTheNewerProgramHasThePath is an upgrade: the older program continues, and must not remove the path when it exits.
func TestTheNewerProgramHasThePath(t *testing.T) {
	path := socketPath(t)
	stopOlder := served(t, path, "older")
	served(t, path, "newer")
	stopOlder()
	if got, err := who(t, path); got != "newer" {
		t.Errorf("after the older one has ended %q answers (%v), want the newer one", got, err)
	}
}

func TestErrorsNameTheFix(t *testing.T) {
	path := socketPath(t)
	_, err := who(t, path)
	if err == nil || !strings.Contains(err.Error(), "no kube-nftproxy runs here") {
		t.Errorf("no socket: %v", err)
	}
	served(t, path, "one")
	var into string
	if err := NewClient(path).Get(t.Context(), "missing", &into); !errors.As(err, new(NotFound)) || err.Error() != "no such thing" {
		t.Errorf("what isn't there: %v", err)
	}
	if err := NewClient(path).Get(t.Context(), "broken", &into); err == nil || err.Error() != "it is broken" {
		t.Errorf("what is broken: %v", err)
	}
	client := NewClient(path)
	response, err := client.http.Post("http://x/who", "text/plain", bytes.NewReader(nil))
	lab.Must(t, err)
	if response.Body.Close() != nil || response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d, want 405", response.StatusCode)
	}
}

// TestAFileIsNotReplaced: a wrong path must not destroy a file.
func TestAFileIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	lab.Must(t, os.WriteFile(path, []byte("data"), 0o600))
	if _, err := listen(t.Context(), path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("listening at a file: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "data" {
		t.Errorf("the file now: %q, %v", text, err)
	}
}

// TestASlowReaderBlocksNothing publishes more values than wait for the reader.
func TestASlowReaderBlocksNothing(t *testing.T) {
	f := NewFeed[int]()
	const published = mostWaiting + 50
	for i := range published {
		f.Publish(i)
	}
	first, lost, err := f.Next(t.Context())
	if first != 50 || lost != 50 || err != nil {
		t.Errorf("the first value is %d with %d lost (%v), want 50 with 50", first, lost, err)
	}
	for i := 51; i < published; i++ {
		if got, lost, err := f.Next(t.Context()); got != i || lost != 0 || err != nil {
			t.Fatalf("value %d with %d lost (%v), want %d", got, lost, err, i)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: %v", err)
	}
}

// TestStreamEndsWithTheServer follows a feed until its server stops.
func TestStreamEndsWithTheServer(t *testing.T) {
	feeds := make(chan *Feed[int], 1)
	subscribe := func(_ context.Context, f *Feed[int]) error {
		feeds <- f
		return nil
	}
	path := socketPath(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, path, Stream(subscribe, func(v *int, n uint64) { *v += 1000 * int(n) }))
	}()
	lines, ended, begun := make(chan int, 10), make(chan error, 1), make(chan struct{})
	go func() {
		for { // until it listens
			err := Follow(t.Context(), NewClient(path), "watch", func() { close(begun) }, func(n *int) error { lines <- *n; return nil })
			if err == nil || !strings.Contains(err.Error(), "there is no socket") {
				ended <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	<-begun
	f := <-feeds
	for i := range 3 {
		f.Publish(i)
		if got := <-lines; got != i {
			t.Errorf("line %d, want %d", got, i)
		}
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "has exited") {
		t.Errorf("the stream ended with %v, want that the program has exited", err)
	}
	<-done
}

// TestAPathThatCannotBeMadeIsNoEnd has no folder for the socket, as with a read-only root file system.
func TestAPathThatCannotBeMadeIsNoEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	lab.Must(t, os.WriteFile(file, nil, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	Serve(ctx, filepath.Join(file, "control.sock"), http.NotFoundHandler())
	if ctx.Err() == nil {
		t.Error("Serve has returned before the context ended")
	}
	Serve(t.Context(), "", http.NotFoundHandler()) // switched off
}

// TestAbandonedPaths tests when an older program may get the path back.
func TestAbandonedPaths(t *testing.T) {
	path := socketPath(t)
	if !abandoned(path) {
		t.Error("a path without a socket isn't abandoned")
	}
	stop := served(t, path, "newer")
	if abandoned(path) {
		t.Error("a socket with a listener is abandoned")
	}
	stop()
	if !abandoned(path) {
		t.Error("a socket of a program that has ended isn't abandoned")
	}
}
