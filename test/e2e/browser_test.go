//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"time"
)

// browser is Chromium on the node, with one page. The test drives it by the Chrome DevTools Protocol, over two pipes.
type browser struct {
	*desk
	to   *os.File
	from *os.File
	in   *bufio.Reader
	// session is the page's. calls and loads are the numbers of calls and of loaded pages so far.
	session      string
	calls, loads int
}

// open starts the browser.
func (b *browser) open(path string) {
	b.Helper()
	commands, to, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.to, b.from, b.in = to, from, bufio.NewReader(from)
	profile := b.TempDir()
	cmd := b.Node.Command(b.Context(), path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir="+profile, "--remote-debugging-pipe")
	cmd.Env = append(os.Environ(), "HOME="+profile, "TZ=UTC")
	cmd.ExtraFiles = []*os.File{commands, answers}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = to.Close() // the browser exits
		_ = cmd.Wait()
		_ = from.Close()
	})
	_, _ = commands.Close(), answers.Close()
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Log", "Runtime", "Page"} {
		b.call(domain+".enable", nil, nil)
	}
	b.resize(1280)
}

// call calls a method, and stores its result unless it is nil. Each message about the page is an error.
func (b *browser) call(method string, params, result any) {
	b.Helper()
	b.calls++
	message, err := json.Marshal(map[string]any{"id": b.calls, "method": method, "params": params, "sessionId": b.session})
	if err != nil {
		b.Fatal(err)
	}
	_ = b.to.SetWriteDeadline(time.Now().Add(patience))
	if _, err := b.to.Write(append(message, 0)); err != nil {
		b.Fatalf("chromium: %s: %v", method, err)
	}
	for {
		switch got := b.receive(method); {
		case got.ID != b.calls:
			continue
		case got.Error != nil:
			b.Fatalf("chromium: %s: %s", method, got.Error.Message)
		case result == nil:
		default:
			if err := json.Unmarshal(got.Result, result); err != nil {
				b.Fatalf("chromium: %s: %v: %s", method, err, got.Result)
			}
		}
		return
	}
}

// fromBrowser is a message of the browser: the result of a call, or an event.
type fromBrowser struct {
	ID             int
	Method         string
	Result, Params json.RawMessage
	Error          *struct{ Message string }
}

// receive returns the next message. during is the method for an error.
func (b *browser) receive(during string) (got fromBrowser) {
	b.Helper()
	_ = b.from.SetReadDeadline(time.Now().Add(patience))
	text, err := b.in.ReadBytes(0)
	if err != nil {
		b.Fatalf("chromium: %s: %v", during, err)
	}
	if err := json.Unmarshal(text[:len(text)-1], &got); err != nil {
		b.Fatal(err)
	}
	switch got.Method {
	case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
		b.Errorf("the browser complains: %s", got.Params)
	case "Page.loadEventFired":
		b.loads++
	}
	return got
}

// evaluate stores the value of an expression of JavaScript.
func (b *browser) evaluate(result any, expression string) {
	b.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &got)
	if err := json.Unmarshal(got.Result.Value, result); err != nil || got.ExceptionDetails != nil {
		b.Fatalf("%s: %v, %s", expression, err, got.ExceptionDetails)
	}
}

// load loads a page, even if it differs from the present one only in the fragment.
func (b *browser) load(url string) {
	b.Helper()
	for _, to := range []string{"about:blank", url} {
		before := b.loads
		b.call("Page.navigate", map[string]any{"url": to}, nil)
		for b.loads == before {
			b.receive(to)
		}
	}
}

// resize sets the width of the window in pixels.
func (b *browser) resize(width int) {
	b.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
}
