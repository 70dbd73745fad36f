package health

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
)

// For any input, each server answers in HTTP or closes the connection, and then serves the next client.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		question + "\r\n", "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n",
		"POST /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01",
		"CONNECT /healthz HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", "GET //../healthz?verbose&%zz HTTP/1.0\r\n\r\n", "GET /proxyMode HTTP/1.1\r\nExpect: 100-continue\r\nHost:\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, start := range servers() {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				start(t, l)
				asker := l.dial()
				said := make(chan struct{})
				go func() {
					defer close(said)
					_, _ = asker.Write(data)
				}()
				answer := bufio.NewReader(asker)
				if first, err := answer.Peek(5); err == nil && string(first) != "HTTP/" {
					t.Errorf("%s: an answer begins with %q", name, first)
				}
				if r, err := http.ReadResponse(answer, nil); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					if r.StatusCode >= 500 && r.StatusCode != http.StatusServiceUnavailable && r.StatusCode != http.StatusNotImplemented &&
						r.StatusCode != http.StatusHTTPVersionNotSupported {
						t.Errorf("%s: answers %s to %q", name, r.Status, data)
					}
				}
				_ = asker.Close()
				<-said
				next := l.dial()
				defer next.Close()
				if _, err := fmt.Fprint(next, question+"\r\n"); err != nil {
					t.Fatalf("%s: the next client cannot send a request: %v", name, err)
				}
				if _, err := http.ReadResponse(bufio.NewReader(next), nil); err != nil {
					t.Errorf("%s: the next client gets no answer: %v", name, err)
				}
			})
		}
	})
}
