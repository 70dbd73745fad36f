//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/browser"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// statusPage is the status page of the program on a desk.
type statusPage struct {
	*desk
	*browser.Browser
}

// markup are names that a page must not interpret as elements. The API server rejects most of them; the page does not rely on
// that.
const markup = deskNode + `---
apiVersion: v1
kind: Service
metadata: {name: "<img src=x onerror=alert(1)>", namespace: default}
spec: {clusterIP: 10.96.0.13, clusterIPs: [10.96.0.13], ipFamilies: [IPv4], ports: [{name: "<b id=bold>p</b>", appProtocol: "<u>", port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: markup, namespace: default, labels: {kubernetes.io/service-name: "<img src=x onerror=alert(1)>"}}
addressType: IPv4
ports: [{name: "<b id=bold>p</b>", port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.40], nodeName: "<script>document.title=1</script>", conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: default}
spec: {ports: [{port: 80, protocol: TCP}]}
`

// longNames are Services with the longest name that an EndpointSlice can have, with and without a problem.
func longNames() string {
	long := deskNode + deskSlice("web", "s1", deskPort, readyPod) + deskService(1, "web", "", "")
	for i, letter := range []string{"l", "m"} {
		name := strings.Repeat(letter, 253)
		long += strings.ReplaceAll(deskService(2+i, name, "externalIPs: ["+[]string{"203.0.113.9", "0.0.0.0"}[i]+"]", ""), "namespace: default", "namespace: "+strings.Repeat("n", 63))
	}
	return long
}

// TestStatusPage shows the status page of the built program in a real browser. $STATUS_PAGE_PICTURE names a folder for
// screenshots.
func TestStatusPage(t *testing.T) {
	// The last Service has no endpoints, and a part of another one's address.
	manifests := mustRead(t, "testdata/debugging.yaml") + deskService(3, "zebra", "externalIPs: [203.0.113.8]", "")
	manifests = strings.Replace(manifests, "{name: http, port: 80, protocol: TCP, nodePort: 0}", "{name: https, port: 443, protocol: TCP}", 1)
	d := newDesk(t, manifests)
	b := &statusPage{d, browser.Open(t, d.Node.Do)}
	serve(t, inet.TCP, backendPort, b.Pods[0])
	if got := b.Pods[1].Probe(t.Context(), inet.TCP, addrPort("10.96.0.10"), lab.Options{}); got.Outcome != lab.Answered {
		t.Fatal(got)
	}
	for i := range 3 {
		b.moved(manifests, 20+i)
	}
	b.change(manifests, "10.244.0.10:8080")
	if dir := os.Getenv("STATUS_PAGE_PICTURE"); dir != "" {
		b.pictures(manifests, dir)
	}
	page := b.show("", "on node-1", "default/web", "10.96.0.10:80", "10.244.0.10:8080", "default/api", "no endpoints", "default/edge",
		":30443 on 192.0.2.1", "203.0.113.8:443", "allowed sources: 198.51.100.0/24", "policy Local", "not ready", "hinted to other zones", "1 to 4 of 4")
	b.checkFindings()
	want := []string{"AddressConflict", "default/api", "default/zebra", "default/edge", "default/web"}
	lab.Same(t, want, page.order(), "findings, Services with a problem, other Services")
	cause := "203.0.113.8:443/TCP: not programmed: already used by default/edge:https"
	if cause += "Fix" + outcome.Rows[outcome.Conflict].Fix; !strings.Contains(page.text, cause) {
		t.Errorf("%q is not on the page:\n%s", cause, page.text)
	}
	if n := strings.Count(page.text, "not programmed: already used by default/edge:https"); n != 2 {
		t.Errorf("the conflict is %d times on the page, want it as a cause and in the row of the address:\n%s", n, page.text)
	}
	b.checkLook()
	var syncs uint64
	eventually(t, patience, func() error { // the loop may check the tables meanwhile
		page, syncs = b.show(""), b.syncs()
		if n := page.points(); n != syncs || n < 5 {
			return fmt.Errorf("%d points are in the plot; there were %d syncs", n, syncs)
		}
		return nil
	})
	if !strings.Contains(page.dom, `class="sync full"><title>`) || !strings.Contains(page.dom, `class="sync partial"><title>`) {
		t.Error("the plot doesn't tell the first sync from those of changes")
	}

	// A change, and a search.
	b.change(strings.Replace(manifests, "[10.244.0.10]", "[10.244.0.99]", 1), "10.244.0.99:8080")
	eventually(t, patience, func() error { // the page requests Services and syncs separately, and an answer may be half a second old
		page = b.show("#find=DEFAULT/WE", "10.244.0.99:8080", "1 to 1 of 1 (of 4)")
		if n := page.points(); n <= syncs {
			return fmt.Errorf("%d points are in the plot after a change; before it there were %d", n, syncs)
		}
		return nil
	})
	lab.Same(t, []string{"AddressConflict", "default/web"}, page.order(), "Services that a search shows")
	lab.Same(t, want[:3], b.show("#wrong=1").order(), "Services that need attention")

	// The page refreshes itself. Names that look like elements.
	b.show("")
	b.change(markup, "10.244.1.40:8080")
	page = b.shown("default/<img src=x onerror=alert(1)>", "<b id=bold>p</b>", "on <script>document.title=1</script>", "default/outsidenot served here", "1 to 2 of 2")
	if found := regexp.MustCompile(`<(img|b|u)\b`).FindString(page.dom); found != "" || strings.Count(page.dom, "<script>") != 1 {
		t.Errorf("a name has become an element %s>:\n%s", found, page.dom)
	}

	b.change(longNames(), "10.96.1.3:80")
	full := func(letter string) string { return strings.Repeat("n", 63) + "/" + strings.Repeat(letter, 253) }
	eventually(t, patience, func() error {
		// A name is among the Services, in the plot, and in the table of updates.
		page := b.show("", full("m")+"Cause", full("l"), "1 to 3 of 3")
		if n := strings.Count(page.text, full("l")); n < 3 {
			return fmt.Errorf("the long name is on the page %d times:\n%s", n, page.text)
		}
		return nil
	})
	b.CheckWidth()
}

// checkFindings compares the findings on the page with those of the command, and the page's first sentence with the command's first line.
func (b *statusPage) checkFindings() {
	b.Helper()
	type finding struct{ Severity, Reason, Object, What, Impact, Fix, Affects string }
	eventually(b.T, patience, func() error { // texts may have ages and numbers that change
		var status view.Status
		if err := b.read(&status, "status", "-o", "json"); err != nil {
			return err
		}
		var want, got []finding
		for _, f := range status.Findings {
			want = append(want, finding{string(f.Severity), string(f.Reason), f.Object, f.What, f.Impact, f.Fix, f.Affects})
		}
		b.Evaluate(&got, `[...document.querySelectorAll("[data-reason]")].map(e => {
			const f = {Severity: e.className.split(" ")[1], Reason: e.dataset.reason, What: e.querySelector("h3").lastChild.textContent,
				Object: e.querySelector("p").textContent.split(" – ").slice(1).join(" – ")};
			for (const d of e.querySelectorAll("dl div")) f[d.firstChild.textContent] = d.lastChild.textContent;
			return f;
		})`)
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("findings of the command and of the page (-want +got):\n%s", diff)
		}
		var sentence string
		if b.Evaluate(&sentence, `document.getElementById("state").textContent`); sentence != status.Health() {
			return fmt.Errorf("the page begins with %q, want %q", sentence, status.Health())
		}
		return nil
	})
}

// checkLook checks dark mode, that nothing is wider than a phone, and that the focus of the keyboard is visible.
func (b *statusPage) checkLook() {
	b.Helper()
	b.CheckWidth()
	b.CheckDarkMode()
	const stops = 6
	for range stops {
		for _, kind := range []string{"rawKeyDown", "keyUp"} {
			b.Call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}, nil)
		}
		var at struct{ Tag, Outline string }
		b.Evaluate(&at, `(e => ({Tag: e.tagName, Outline: getComputedStyle(e).outlineStyle}))(document.activeElement)`)
		if at.Outline == "none" || at.Tag == "BODY" {
			b.Errorf("the focus of the keyboard is at %s, with outline %s", at.Tag, at.Outline)
		}
	}
}

// change writes manifests, and waits until an endpoint is known, and everything is programmed.
func (b *statusPage) change(manifests, endpoint string) {
	b.Helper()
	had := b.syncs()
	b.write(manifests)
	eventually(b.T, patience, func() error {
		if text, _ := b.command("services", "-o", "json"); !strings.Contains(text, endpoint) {
			return fmt.Errorf("%s isn't among: %s", endpoint, text)
		}
		if n := b.syncs(); n == had {
			return errors.New("no sync")
		}
		return nil
	})
}

// syncs returns the number of syncs.
func (b *statusPage) syncs() uint64 {
	b.Helper()
	var s view.Status
	if err := b.read(&s, "status", "-o", "json"); err != nil || s.Loop == nil {
		b.Fatalf("%v, %+v", err, s)
	}
	return s.Loop.Syncs
}

// shownPage is the page in the browser.
type shownPage struct{ dom, text string }

var tags = regexp.MustCompile(`(?s)<(style|script)>.*?</(style|script)>|<[^>]*>`)

// show loads the page, and waits as shown does.
func (b *statusPage) show(fragment string, texts ...string) shownPage {
	b.Helper()
	b.Load("http://127.0.0.1:10249/status" + fragment)
	return b.shown(texts...)
}

// shown waits until the page has all of these texts: the shown data may be half a second old, or older on a slow machine.
func (b *statusPage) shown(texts ...string) (p shownPage) {
	b.Helper()
	eventually(b.T, patience, func() error {
		b.Evaluate(&p.dom, "document.documentElement.outerHTML")
		p.text = html.UnescapeString(tags.ReplaceAllString(p.dom, ""))
		if !strings.Contains(p.dom, "data-answers=") {
			return errors.New("the page has no answer")
		}
		for _, want := range texts {
			if !strings.Contains(p.text, want) {
				return fmt.Errorf("%q is not on the page:\n%s", want, p.text)
			}
		}
		return nil
	})
	return p
}

// points returns the number of syncs in the plot; each point has a label.
func (s shownPage) points() uint64 {
	return uint64(len(regexp.MustCompile(`class="sync \w+"><title>`).FindAllString(s.dom, -1)))
}

// order returns the reasons of findings that are no notes, and the names of Services, in the order of the page.
func (s shownPage) order() (names []string) {
	for _, m := range regexp.MustCompile(`<(?:article|details) class="(?:card wrong|card warning|row)" data-(?:reason|name)="([^"]*)"`).FindAllStringSubmatch(s.dom, -1) {
		names = append(names, m[1])
	}
	return names
}

// moved changes the address of the endpoint that web uses.
func (b *statusPage) moved(manifests string, to int) {
	b.Helper()
	address := fmt.Sprintf("10.244.0.%d", to)
	b.change(strings.Replace(manifests, "[10.244.0.10]", "["+address+"]", 1), address+":8080")
}

// pictures takes screenshots of a day with events: light, dark, and on a phone. They contain no paths of this machine.
func (b *statusPage) pictures(manifests, dir string) {
	b.Helper()
	const changes, noticed, flushed = 70, 5, 45
	for i := range changes {
		switch {
		case i == noticed: // from its first foreign change on, the program learns the authors
			nft(b.T, b.Node, "add table ip other")
		case i == flushed:
			nft(b.T, b.Node, "flush ruleset")
			b.await("status", "there is no table ip kube-nftproxy, ruleset last changed by nft")
		case i%9 == 4:
			b.change(strings.ReplaceAll(strings.Replace(manifests, "[10.244.0.10]", fmt.Sprintf("[10.244.0.%d]", 30+i), 1), "edge", fmt.Sprint("edge-", i)), fmt.Sprintf("10.244.0.%d:", 30+i))
		default:
			b.moved(manifests, 30+i)
		}
	}
	b.change(manifests, "10.244.0.10:8080")
	address := b.neutral()
	for name, look := range map[string]struct {
		width  int
		scheme string
	}{
		"status-page.png": {1280, "light"}, "status-page-dark.png": {1280, "dark"}, "status-page-narrow.png": {400, "light"}, "status-page-narrow-dark.png": {400, "dark"},
	} {
		b.Resize(look.width)
		b.Scheme(look.scheme)
		b.Load(address)
		b.shown("default/web")
		var picture struct{ Data []byte }
		b.Call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &picture)
		if err := os.WriteFile(filepath.Join(dir, name), picture.Data, 0o644); err != nil {
			b.Error(err)
		}
	}
	b.Scheme("")
}

// neutral serves the page as the program does, without the kernel's release and paths of this test, and returns its URL.
func (b *statusPage) neutral() string {
	b.Helper()
	const listen = "127.0.0.1:10999"
	var l net.Listener
	must(b, b.Node.Do(func() (err error) {
		l, err = net.Listen("tcp", listen)
		return err
	}))
	server := http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, text, err := b.program.Get(r.Context(), "http://127.0.0.1:10249"+r.URL.RequestURI())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		text = kernelIs.ReplaceAll(bytes.ReplaceAll(text, []byte(b.dir), []byte("/etc/kube-nftproxy")), []byte(`"kernel":"6.18.0"`))
		w.Header().Set("Content-Security-Policy", "img-src 'none'") // no icon is requested
		w.WriteHeader(code)
		_, _ = w.Write(text)
	})}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { _ = server.Close() })
	return "http://" + listen + "/status"
}

var kernelIs = regexp.MustCompile(`"kernel":"[^"]*"`)
