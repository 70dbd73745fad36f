package health

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pipes is a listener with connections in memory, for the virtual time of a synctest bubble.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns the client's end of a new connection.
func (p *pipes) dial() net.Conn {
	asker, server := net.Pipe()
	p.accepted <- server
	return asker
}

// servers returns all kinds of the program's servers, each with a function that starts it on a listener.
func servers() map[string]func(t *testing.T, l net.Listener) {
	port := func(h http.Handler) func(*testing.T, net.Listener) {
		return func(t *testing.T, l net.Listener) {
			ctx, cancel := context.WithCancel(quietly(t))
			ended := make(chan error)
			go func() {
				ended <- serve(ctx, h, RetryInterval, true, func() (net.Listener, error) { return l, nil })
			}()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("serve: %v", err)
				}
			})
		}
	}
	return map[string]func(*testing.T, net.Listener){
		"health":  port(New(Config{Now: time.Now, NoNode: true}).Handler()),
		"metrics": port(MetricsHandler(prometheus.NewRegistry(), time.Now())),
		"health check node port": func(t *testing.T, l net.Listener) {
			s := newServices(unexpected(t))
			s.listen = func(string, string) (net.Listener, error) { return l, nil }
			check := Check{Port: 1, Served: [2]bool{true}, Local: [2]int{1}}
			s.Sync(map[types.NamespacedName]Check{{Name: "a"}: check}, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
			t.Cleanup(s.Close)
		},
	}
}

const question = "GET /healthz HTTP/1.1\r\nHost: a\r\n"

// heldFor returns the time for which a server keeps the connection of a client with the given behaviour.
func heldFor(asker net.Conn, behave func(net.Conn)) time.Duration {
	begin := time.Now()
	behaved := make(chan struct{})
	go func() {
		defer close(behaved)
		behave(asker)
	}()
	_, _ = io.Copy(io.Discard, asker)
	held := time.Since(begin)
	_ = asker.Close()
	<-behaved
	return held
}

// No client can hold a connection for long by silence, by a slow request, or by not reading answers.
func TestNoClientHoldsAConnection(t *testing.T) {
	slowly := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for i := 0; ; i = (i + 1) % len(text) {
				if _, err := c.Write([]byte{text[i]}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}
	}
	for name, start := range servers() {
		for _, tc := range []struct {
			behaviour string
			behave    func(net.Conn)
			want      time.Duration
		}{
			{"silent", func(net.Conn) {}, askTime},
			{"half a request", func(c net.Conn) { _, _ = io.WriteString(c, question) }, askTime},
			{"byte by byte", slowly("X"), askTime},
			{"header by header", slowly(question + strings.Repeat("A: b\r\n", 100)), askTime},
			{"body byte by byte", func(c net.Conn) {
				_, _ = io.WriteString(c, question+"Content-Length: 60000\r\n\r\n")
				slowly("X")(c)
			}, askTime},
			{"idle after a request", func(c net.Conn) { _, _ = io.WriteString(c, question+"\r\n") }, idleTime},
		} {
			t.Run(name+"/"+tc.behaviour, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newPipes()
					start(t, l)
					asker := l.dial()
					if held := heldFor(asker, tc.behave); held < tc.want || held > tc.want+time.Second {
						t.Errorf("held for %v, want %v", held, tc.want)
					}
				})
			})
		}
		t.Run(name+"/does not read", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				start(t, l)
				asker := l.dial()
				defer asker.Close()
				lab.Must(t, lab.Err(io.WriteString(asker, question+"\r\n")))
				time.Sleep(answerTime + time.Second)
				if text, err := io.ReadAll(asker); err != nil || len(text) > 0 {
					t.Errorf("after %v without a reader, the server still answers: %q, %v", answerTime, text, err)
				}
			})
		})
	}
}

// A header or a body that is too long is not read completely.
func TestNoClientSendsMuch(t *testing.T) {
	for name, start := range servers() {
		for what, text := range map[string]string{
			"header": question + "A: " + strings.Repeat("x", 1<<20),
			"path":   "GET /" + strings.Repeat("x", 1<<20),
			"body":   question + "Content-Length: 1000000000\r\n\r\n" + strings.Repeat("x", 1<<20),
			"chunks": question + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("8000\r\n"+strings.Repeat("x", 0x8000)+"\r\n", 32),
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newPipes()
					start(t, l)
					asker := l.dial()
					defer asker.Close()
					taken := make(chan int, 1)
					go func() {
						n, _ := io.WriteString(asker, text)
						taken <- n
					}()
					go func() { _, _ = io.Copy(io.Discard, asker) }()
					const most = 768 << 10 // net/http reads some of the rest, to reuse the connection
					if n := <-taken; n > most {
						t.Errorf("%d bytes of the %s were read", n, what)
					}
				})
			})
		}
	}
}

// A handler that reads the body gets no more than longestBody bytes.
func TestABodyHasAnEnd(t *testing.T) {
	var read int64
	server := bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { read, _ = io.Copy(io.Discard, r.Body) }), newCrowd(1))
	server.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 1<<20))))
	lab.Same(t, longestBody, read, "bytes were read")
}

// The next client is served, regardless of the number of open connections.
func TestNoClientKeepsOthersOut(t *testing.T) {
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				start(t, l)
				var held []net.Conn
				for i := range 2 * descriptors.Clients() {
					c := l.dial()
					defer c.Close()
					if i%2 == 0 {
						lab.Must(t, lab.Err(io.WriteString(c, "G")))
					}
					held = append(held, c)
				}
				asker := l.dial()
				defer asker.Close()
				lab.Must(t, lab.Err(io.WriteString(asker, question+"\r\n")))
				r, err := http.ReadResponse(bufio.NewReader(asker), nil)
				if err != nil || r.StatusCode != http.StatusOK && r.StatusCode != http.StatusServiceUnavailable {
					t.Fatalf("no answer beside %d connections: %v, %v", len(held), r, err)
				}
				synctest.Wait()
				open := slices.DeleteFunc(held, func(c net.Conn) bool {
					_ = c.SetReadDeadline(time.Now())
					_, err := c.Read(make([]byte, 1))
					return errors.Is(err, io.EOF)
				})
				lab.Same(t, descriptors.Clients()-1, len(open), "connections are open beside the last")
			})
		})
	}
}
