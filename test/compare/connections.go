package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Real clients connect to a real HTTP server in a pod: directly, and through one of many Services. The clients' sockets block, so
// that the kernel wakes a waiting thread, not Go's runtime.

// target is a way to the server, with its measured quantities.
type target struct {
	to netip.AddrPort
	// rate is the number of requests in a second, each on its own connection.
	rate quantity
	// handshake are quantiles of the time from a connection's first packet to the server's answer.
	handshake map[float64]quantity
}

// measureConnections measures connections to a server, by turns.
func measureConnections(ctx context.Context, w *world, e effort, f *Figures) error {
	if e.packets == 0 {
		return nil
	}
	log.Printf("%s, %s: connections", w.size, f.Program)
	var listener net.Listener
	err := w.lab.Pods[0].Do(func() (err error) {
		listener, err = net.Listen("tcp4", ":"+strconv.Itoa(endpointPort))
		return err
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "hello\n") // the client notices
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	targets := []target{
		{netip.AddrPortFrom(w.lab.Pods[0].IPv4, endpointPort), requestsDirect,
			map[float64]quantity{0.5: handshakeDirect50, 0.9: handshakeDirect90, 0.99: handshakeDirect99}},
		{netip.AddrPortFrom(w.connectVIP(), servicePort), requestsService,
			map[float64]quantity{0.5: handshakeService50, 0.9: handshakeService90, 0.99: handshakeService99}},
	}
	const perRound = 2000
	for range 1 + e.packets/perRound {
		if err = w.connectByTurns(ctx, targets, f); err != nil {
			break
		}
	}
	err = errors.Join(err, server.Close())
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// connectByTurns makes one round: many handshakes in sequence, then requests for a fixed time.
func (w *world) connectByTurns(ctx context.Context, targets []target, f *Figures) error {
	const handshakes, period = 500, 200 * time.Millisecond
	times := &Figures{Values: map[quantity][]float64{}}
	err := w.lab.Client.Do(func() error {
		for range handshakes {
			for _, t := range targets {
				took, err := handshake(t.to)
				if err != nil {
					return fmt.Errorf("connect to %s: %w", t.to, err)
				}
				times.add(t.rate, took.Seconds())
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, t := range targets {
		for share, q := range t.handshake {
			v, _ := times.quantile(t.rate, share)
			f.add(q, v)
		}
		rate, err := w.requests(t.to, period)
		if err != nil {
			return fmt.Errorf("request from %s: %w", t.to, err)
		}
		f.add(t.rate, rate)
		// Ports are reused. No connection may match the entry of an earlier one. Without entries, the command fails.
		_ = w.lab.Node.Command(ctx, "conntrack", "-D", "-p", "tcp", "--dport", strconv.Itoa(int(t.to.Port()))).Run()
	}
	return nil
}

// requests makes requests in sequence from several clients for a fixed time, and returns the number of answers in a second.
func (w *world) requests(to netip.AddrPort, period time.Duration) (rate float64, err error) {
	counts, errs := make([]int, 2*runtime.NumCPU()), make([]error, 2*runtime.NumCPU())
	var clients sync.WaitGroup
	start := time.Now()
	for i := range counts {
		clients.Go(func() {
			errs[i] = w.lab.Client.Do(func() error {
				for time.Since(start) < period {
					if err := request(to); err != nil {
						return err
					}
					counts[i]++
				}
				return nil
			})
		})
	}
	clients.Wait()
	spent, total := time.Since(start), 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / spent.Seconds(), errors.Join(errs...)
}

// handshake opens a TCP connection and resets it.
func handshake(to netip.AddrPort) (took time.Duration, err error) {
	fd, err := clientSocket()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // it holds no data
	start := time.Now()
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	return time.Since(start), err
}

// request makes a request on its own connection, which the server closes.
func request(to netip.AddrPort) error {
	fd, err := clientSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // it holds no data
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("GET / HTTP/1.1\r\nHost: connect\r\nConnection: close\r\n\r\n")); err != nil {
		return err
	}
	var answer bytes.Buffer
	for b := make([]byte, 1500); ; {
		n, err := unix.Read(fd, b)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		answer.Write(b[:n])
	}
	if !strings.HasPrefix(answer.String(), "HTTP/1.1 200 ") {
		return fmt.Errorf("unexpected answer %q", answer.String())
	}
	return nil
}

// clientSocket opens a TCP socket with a timeout of five seconds for acknowledgements; with SO_SNDTIMEO, Go's signals would
// interrupt its calls. It closes with a reset: an ordinary end would leave the server's port in TIME-WAIT, and a later connection
// that is masqueraded to the same port would wait for 10 ms or a second.
func clientSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	const patience = 5000
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, patience))
	if err != nil {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}
