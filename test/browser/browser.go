// Package browser shows a page in headless Chromium, for tests.
//
// In: URLs, expressions of JavaScript. Out: values, and errors for each message of the page in the browser's log. Never: a page outside of the test.
package browser

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// patience is the time limit of a call.
const patience = time.Minute

// Browser is Chromium with one page. The test drives it by the Chrome DevTools Protocol, over two pipes.
type Browser struct {
	t    *testing.T
	to   *os.File
	from *os.File
	in   *bufio.Reader
	// session is the page's. calls and loads are the numbers of calls and of loaded pages so far.
	session      string
	calls, loads int
}

// Open starts Chromium, and downloads it if it is missing. start calls a function, in a network namespace if the test has one.
func Open(t *testing.T, start func(func() error) error) *Browser {
	t.Helper()
	b := &Browser{t: t}
	if out, err := exec.CommandContext(t.Context(), "../../hack/chromium.sh").CombinedOutput(); err != nil {
		t.Fatalf("hack/chromium.sh: %v\n%s", err, out)
	}
	path, err := filepath.Abs("../../bin/chromium/start")
	lab.Must(t, err)
	commands, to, err := os.Pipe()
	lab.Must(t, err)
	from, answers, err := os.Pipe()
	lab.Must(t, err)
	b.to, b.from, b.in = to, from, bufio.NewReader(from)
	profile := t.TempDir()
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir="+profile, "--remote-debugging-pipe")
	cmd.Env = append(os.Environ(), "HOME="+profile, "TZ=UTC")
	cmd.ExtraFiles = []*os.File{commands, answers}
	cmd.Stderr = io.Discard // a pipe, so that Wait also waits for the browser's child processes, which write into the profile
	cmd.WaitDelay = patience
	lab.Must(t, start(cmd.Start))
	t.Cleanup(func() {
		_ = to.Close() // the browser exits
		defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
		_ = cmd.Wait()
		_ = from.Close()
	})
	_, _ = commands.Close(), answers.Close()
	var target struct{ TargetID string }
	b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Log", "Runtime", "Page"} {
		b.Call(domain+".enable", nil, nil)
	}
	b.Resize(1280)
	return b
}

// Call calls a method, and stores its result unless it is nil. Each message about the page is an error.
func (b *Browser) Call(method string, params, result any) {
	b.t.Helper()
	b.calls++
	message, err := json.Marshal(map[string]any{"id": b.calls, "method": method, "params": params, "sessionId": b.session})
	if err != nil {
		b.t.Fatal(err)
	}
	_ = b.to.SetWriteDeadline(time.Now().Add(patience))
	if _, err := b.to.Write(append(message, 0)); err != nil {
		b.t.Fatalf("chromium: %s: %v", method, err)
	}
	for {
		switch got := b.receive(method); {
		case got.ID != b.calls:
			continue
		case got.Error != nil:
			b.t.Fatalf("chromium: %s: %s", method, got.Error.Message)
		case result == nil:
		default:
			if err := json.Unmarshal(got.Result, result); err != nil {
				b.t.Fatalf("chromium: %s: %v: %s", method, err, got.Result)
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
func (b *Browser) receive(during string) (got fromBrowser) {
	b.t.Helper()
	_ = b.from.SetReadDeadline(time.Now().Add(patience))
	text, err := b.in.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("chromium: %s: %v", during, err)
	}
	if err := json.Unmarshal(text[:len(text)-1], &got); err != nil {
		b.t.Fatal(err)
	}
	switch got.Method {
	case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
		b.t.Errorf("the log of the browser: %s", got.Params)
	case "Page.loadEventFired":
		b.loads++
	}
	return got
}

// Evaluate stores the value of an expression of JavaScript.
func (b *Browser) Evaluate(result any, expression string) {
	b.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.Call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &got)
	if err := json.Unmarshal(got.Result.Value, result); err != nil || got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %v, %s", expression, err, got.ExceptionDetails)
	}
}

// Load loads a page, even if it differs from the present one only in the fragment.
func (b *Browser) Load(url string) {
	b.t.Helper()
	for _, to := range []string{"about:blank", url} {
		b.AwaitLoad(func() { b.Call("Page.navigate", map[string]any{"url": to}, nil) })
	}
}

// AwaitLoad calls a function that makes the browser load another page, and waits for that page.
func (b *Browser) AwaitLoad(start func()) {
	b.t.Helper()
	before := b.loads
	start()
	for b.loads == before {
		b.receive("another page")
	}
}

// Resize sets the width of the window in pixels.
func (b *Browser) Resize(width int) {
	b.t.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme selects the colours: light, dark, or the browser's own if it is empty.
func (b *Browser) Scheme(name string) {
	b.t.Helper()
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// CheckDarkMode requires a light background and dark text, or the reverse in a dark scheme.
func (b *Browser) CheckDarkMode() {
	b.t.Helper()
	defer b.Scheme("")
	for _, scheme := range []string{"light", "dark"} {
		b.Scheme(scheme)
		var got []float64 // brightness of the background and the text, from 0 to 255
		b.Evaluate(&got, `["backgroundColor", "color"].map(name => getComputedStyle(document.body)[name].match(/[\d.]+/g).slice(0, 3).reduce((sum, c) => sum + c / 3, 0))`)
		if got[0] > got[1] != (scheme == "light") || max(got[0], got[1])-min(got[0], got[1]) < 128 {
			b.t.Errorf("in a %s scheme, the brightness of the background is %.0f, that of the text %.0f", scheme, got[0], got[1])
		}
	}
}

// CheckWidth opens all details, and checks that neither on a phone nor on a desktop the page is wider than its window. Parts may have a
// scroll bar of their own.
func (b *Browser) CheckWidth() {
	b.t.Helper()
	for _, width := range []int{400, 1280} {
		b.Resize(width)
		var got struct {
			Page           string
			Scroll, Client int
			Wide           []string
		}
		b.Evaluate(&got, `(() => {
			const all = [...document.querySelectorAll("details")], open = all.filter(d => d.open), page = document.documentElement;
			all.forEach(d => d.open = true);
			const scrolls = e => e && e !== page && (getComputedStyle(e).overflowX === "auto" || scrolls(e.parentElement));
			const got = {Page: location.pathname, Scroll: page.scrollWidth, Client: page.clientWidth, Wide: [...document.querySelectorAll("body *")].filter(e =>
				e.getBoundingClientRect().right > page.clientWidth + 1 && !scrolls(e.parentElement)).map(e => e.outerHTML.slice(0, 200))};
			all.forEach(d => d.open = open.includes(d));
			return got;
		})()`)
		if got.Client != width || got.Scroll > got.Client || len(got.Wide) > 0 {
			b.t.Errorf("in a window of %d pixels, %s has %d, its visible part %d; too wide: %s", width, got.Page, got.Scroll, got.Client, strings.Join(got.Wide, "\n"))
		}
	}
}
