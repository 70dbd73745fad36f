package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// quietly returns a context with a logger that discards everything.
func quietly(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), klog.Logger{})
}

func hello() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
}

func mustListen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	lab.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestServeHardFail(t *testing.T) {
	taken := mustListen(t)
	var state error
	err := Serve(quietly(t), taken.Addr().String(), hello(), time.Hour, true, func(err error) { state = err })
	if !errors.Is(state, unix.EADDRINUSE) {
		t.Errorf("the state is %v", state)
	}
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("Serve on a port in use: error %v, want one that names the address", err)
	}
}

func TestServeWithoutAnAddress(t *testing.T) {
	lab.Check(t, Serve(quietly(t), "", hello(), time.Hour, true, nil), "Serve without an address")
}

func TestServeRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quietly(t))
		begin := time.Now()
		var tries []time.Duration
		listen := func() (net.Listener, error) {
			tries = append(tries, time.Since(begin))
			if len(tries) == 4 {
				cancel()
			}
			return nil, errors.New("address already in use")
		}
		lab.Check(t, serve(ctx, hello(), RetryInterval, false, listen), "serve")
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second}
		lab.Same(t, want, tries, "attempts")
	})
}

// TestServeAnswers: the first two attempts fail, the third listener breaks, and the fourth serves until the end.
func TestServeAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(quietly(t))
	dead, live := mustListen(t), mustListen(t)
	lab.Must(t, dead.Close())
	tries := 0
	listen := func() (net.Listener, error) {
		switch tries++; tries {
		case 1, 2:
			return nil, errors.New("address already in use")
		case 3:
			return dead, nil
		}
		return live, nil
	}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, hello(), time.Millisecond, false, listen) }()

	resp, err := http.Get("http://" + live.Addr().String())
	lab.Must(t, err)
	body, err := io.ReadAll(resp.Body)
	lab.Must(t, err)
	_ = resp.Body.Close()
	lab.Same(t, "hello", string(body), "answer")
	cancel()
	lab.Check(t, <-done, "serve")
	lab.Same(t, 4, tries, "attempts")
	if conn, err := net.Dial("tcp", live.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the port is still open after the end of ctx")
	}
}

// TestServeCutsOff: an endless answer does not prevent Serve from returning.
func TestServeCutsOff(t *testing.T) {
	ctx, cancel := context.WithCancel(quietly(t))
	l := mustListen(t)
	stuck := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	asked := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + l.Addr().String())
		if err == nil {
			_ = resp.Body.Close()
		}
		asked <- err
	}()
	lab.Check(t, serve(ctx, stuck, time.Hour, true, func() (net.Listener, error) { return l, nil }), "serve")
	if err := <-asked; err == nil {
		t.Error("the endless answer was completed")
	}
}
