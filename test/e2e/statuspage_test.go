//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

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
spec: {type: ExternalName, externalName: example.org}
`

// TestStatusPage shows the status page of the built program in a real browser. $STATUS_PAGE_PICTURE names a folder for
// screenshots.
func TestStatusPage(t *testing.T) {
	debugging, err := os.ReadFile("testdata/debugging.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{desk: newDesk(t, string(debugging)), path: chromium(t)}
	if _, err := b.Pods[0].Serve(inet.TCP, backendPort); err != nil {
		t.Fatal(err)
	}
	if got := b.Pods[1].Probe(t.Context(), inet.TCP, addrPort("10.96.0.10"), lab.Options{}); got.Outcome != lab.Answered {
		t.Fatal(got)
	}
	for i := range 3 {
		b.moved(string(debugging), 20+i)
	}
	b.change(string(debugging), "10.244.0.10:8080")
	if dir := os.Getenv("STATUS_PAGE_PICTURE"); dir != "" {
		b.pictures(string(debugging), dir)
	}
	page := b.show("", "on node-1", "healthy", "default/web", "10.96.0.10:80", "10.244.0.10:8080", "default/api", "no endpoints", "default/edge",
		":30443 on 192.0.2.1", "203.0.113.8:443", "allowed sources: 198.51.100.0/24", "policy Local", "not ready", "hinted to other zones", "1 to 3 of 3")
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
	if n := page.answers(); n < 3 {
		t.Errorf("in 7 seconds the page has asked %d times, want once in 2", n)
	}

	// A change, and a search.
	b.change(strings.Replace(string(debugging), "[10.244.0.10]", "[10.244.0.99]", 1), "10.244.0.99:8080")
	eventually(t, patience, func() error { // the page requests Services and syncs separately, and an answer may be half a second old
		page = b.show("#find=DEFAULT/WE", "10.244.0.99:8080", "1 to 1 of 1 (of 3)")
		if n := page.points(); n <= syncs {
			return fmt.Errorf("%d points are in the plot after a change; before it there were %d", n, syncs)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"default/web"}, page.services()); diff != "" {
		t.Errorf("Services that a search shows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"default/api"}, b.show("#wrong=1").services()); diff != "" {
		t.Errorf("Services that need attention (-want +got):\n%s", diff)
	}

	// Names that look like elements.
	b.change(markup, "10.244.1.40:8080")
	page = b.show("", "default/<img src=x onerror=alert(1)>", "<b id=bold>p</b>", "on <script>document.title=1</script>", "default/outsideNot served on this node", "1 to 2 of 2")
	if found := regexp.MustCompile(`<(img|b|u)\b`).FindString(page.dom); found != "" || strings.Count(page.dom, "<script>") != 1 {
		t.Errorf("a name has become an element %s>:\n%s", found, page.dom)
	}
}

// chromium returns a program that starts Chromium; it downloads a missing one.
func chromium(t testing.TB) string {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "../../hack/chromium.sh").CombinedOutput(); err != nil {
		t.Fatalf("hack/chromium.sh: %v\n%s", err, out)
	}
	path, err := filepath.Abs("../../bin/chromium/start")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// browser opens the page on the node itself.
type browser struct {
	*desk
	path string
}

// change writes manifests, and waits until an endpoint is known, and everything is programmed.
func (b *browser) change(manifests, endpoint string) {
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
func (b *browser) syncs() uint64 {
	b.Helper()
	var s view.Status
	if err := b.read(&s, "status", "-o", "json"); err != nil || s.Loop == nil {
		b.Fatalf("%v, %+v", err, s)
	}
	return s.Loop.Syncs
}

// run runs the browser, and returns its output. Any message about the page is an error. A browser that fails or hangs, as on a
// busy machine, is restarted.
func (b *browser) run(url string, args ...string) string {
	b.Helper()
	const attempts = 3
	for i := 1; ; i++ {
		out, said, err := b.runOnce(url, args...)
		if err == nil {
			if lines := regexp.MustCompile(`(?m)^.*CONSOLE.*$`).FindAllString(said, -1); len(lines) > 0 {
				b.Errorf("the browser complains:\n%s", strings.Join(lines, "\n"))
			}
			return out
		}
		if i == attempts || b.Context().Err() != nil {
			b.Fatalf("chromium, attempt %d: %v\n%s", i, err, said)
		}
		b.Logf("chromium, attempt %d: %v", i, err)
	}
}

// runOnce returns the browser's output and log.
func (b *browser) runOnce(url string, args ...string) (printed, log string, err error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*patience)
	defer cancel()
	profile := b.TempDir()
	cmd := b.Node.Command(ctx, b.path, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr", "--user-data-dir=" + profile, "--virtual-time-budget=7000",
	}, append(args, url)...)...)
	cmd.Env = append(os.Environ(), "HOME="+profile, "TZ=UTC")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	return out.String(), said.String(), err
}

// shown is the page in a browser after seven seconds.
type shown struct{ dom, text string }

var tags = regexp.MustCompile(`(?s)<(style|script)>.*?</(style|script)>|<[^>]*>`)

// show loads the page until it has all of these texts: the shown data may be half a second old, or older on a slow machine.
func (b *browser) show(fragment string, texts ...string) (s shown) {
	b.Helper()
	eventually(b.T, patience, func() error {
		dom := b.run("http://127.0.0.1:10249/status"+fragment, "--dump-dom")
		s = shown{dom, html.UnescapeString(tags.ReplaceAllString(dom, ""))}
		for _, want := range texts {
			if !strings.Contains(s.text, want) {
				return fmt.Errorf("%q is not on the page:\n%s", want, s.text)
			}
		}
		return nil
	})
	return s
}

// points returns the number of syncs in the plot; each point has a label.
func (s shown) points() uint64 {
	return uint64(len(regexp.MustCompile(`class="sync \w+"><title>`).FindAllString(s.dom, -1)))
}

func (s shown) answers() (n int) {
	if m := regexp.MustCompile(`<html[^>]* data-answers="(\d+)"`).FindStringSubmatch(s.dom); m != nil {
		_, _ = fmt.Sscan(m[1], &n)
	}
	return n
}

func (s shown) services() (names []string) {
	for _, m := range regexp.MustCompile(`data-name="([^"]*)"`).FindAllStringSubmatch(s.dom, -1) {
		names = append(names, m[1])
	}
	return names
}

// moved changes the address of the endpoint that web uses.
func (b *browser) moved(manifests string, to int) {
	b.Helper()
	address := fmt.Sprintf("10.244.0.%d", to)
	b.change(strings.Replace(manifests, "[10.244.0.10]", "["+address+"]", 1), address+":8080")
}

// pictures takes screenshots of a day with events: light, dark, and on a phone. They contain no paths of this machine.
func (b *browser) pictures(manifests, dir string) {
	b.Helper()
	const changes, flushed = 70, 45
	for i := range changes {
		switch {
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
	for name, args := range map[string][]string{
		"status-page.png":        {"--window-size=1180,1650"},
		"status-page-dark.png":   {"--window-size=1180,1650", "--blink-settings=preferredColorScheme=0"},
		"status-page-narrow.png": {"--window-size=500,1900"},
	} {
		file := filepath.Join(dir, name)
		b.run(address, append(args, "--hide-scrollbars", "--screenshot="+file)...)
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			b.Errorf("no picture: %v", err)
		}
	}
}

// neutral serves the page as the program does, without the kernel's release and paths of this test, and returns its URL.
func (b *browser) neutral() string {
	b.Helper()
	const listen = "127.0.0.1:10999"
	var l net.Listener
	err := b.Node.Do(func() (err error) {
		l, err = net.Listen("tcp", listen)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	server := http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, text, err := b.program.Get(r.Context(), "http://127.0.0.1:10249"+r.URL.RequestURI())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		text = kernelIs.ReplaceAll(bytes.ReplaceAll(text, []byte(b.dir), []byte("/etc/kube-nftproxy")), []byte(`"kernel":"6.18.0"`))
		w.WriteHeader(code)
		_, _ = w.Write(text)
	})}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { _ = server.Close() })
	return "http://" + listen + "/status"
}

var kernelIs = regexp.MustCompile(`"kernel":"[^"]*"`)
