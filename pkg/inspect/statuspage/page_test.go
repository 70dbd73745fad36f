package statuspage

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// asked records the last query, and returns a given answer.
type asked struct {
	last  Query
	found Found
	err   error
}

func (a *asked) port() http.Handler {
	mux := http.NewServeMux()
	Install(mux, Config{
		Status: func(context.Context) *view.Status { return &view.Status{Node: "</script>", Loop: &view.Loop{}} },
		Syncs:  func(context.Context) ([]view.Sync, error) { return []view.Sync{{Kind: "full", TotalMicros: 7}}, nil },
		Services: func(_ context.Context, q Query) (*Found, error) {
			a.last = q
			return &a.found, a.err
		},
	})
	return mux
}

func do(h http.Handler, method, path string) *httptest.ResponseRecorder {
	return from(h, method, path, "127.0.0.1:40000", "localhost:10249")
}

func from(h http.Handler, method, path, remote, host string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
	r.RemoteAddr, r.Host = remote, host
	h.ServeHTTP(w, r)
	return w
}

func TestOnlyTheNodeMayRead(t *testing.T) {
	for _, tc := range []struct {
		remote, host string
		code         int
	}{
		{"127.0.0.1:1", "127.0.0.1:10249", 200},
		{"127.9.9.9:1", "localhost", 200},
		{"[::1]:1", "[::1]:10249", 200},
		{"[::1]:1", "[::1]", 200},
		{"[::ffff:127.0.0.1]:1", "localhost:8080", 200},
		{"192.0.2.7:1", "127.0.0.1:10249", 403},
		{"[2001:db8::7]:1", "localhost", 403},
		{"[::ffff:192.0.2.7]:1", "localhost", 403},
		{"", "localhost", 403},
		{"127.0.0.1:1", "rebound.example:10249", 403},
		{"127.0.0.1:1", "localhost.rebound.example", 403},
		{"127.0.0.1:1", "127.0.0.1.rebound.example", 403},
		{"127.0.0.1:1", "192.0.2.1:10249", 403},
		{"127.0.0.1:1", "", 403},
	} {
		for _, path := range []string{Path, dataPath, syncsPath, servicesPath} {
			if w := from((&asked{}).port(), http.MethodGet, path, tc.remote, tc.host); w.Code != tc.code {
				t.Errorf("%s from %q as %q: %d, want %d", path, tc.remote, tc.host, w.Code, tc.code)
			}
		}
	}
}

// TestThePageIsByItself checks the page's headers: content from other servers and foreign styles and scripts are forbidden.
func TestThePageIsByItself(t *testing.T) {
	w := do((&asked{}).port(), http.MethodGet, Path)
	body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, tag := range []string{"style", "script"} {
		parts := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(body, -1)
		if len(parts) != 1 {
			t.Fatalf("there are %d <%s>", len(parts), tag)
		}
		sum := sha256.Sum256([]byte(parts[0][1]))
		if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("the policy %q doesn't allow %s", policy, want)
		}
	}
	for _, want := range []string{"default-src 'none';", "connect-src 'self';", "frame-ancestors 'none';", "require-trusted-types-for 'script';"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %s", policy, want)
		}
	}
	// A namespace and a link are not loaded.
	known := strings.NewReplacer("http://www.w3.org/2000/svg", "",
		"https://github.com/kube-nftproxy/kube-nftproxy/blob/main/docs/findings.md", "")
	elsewhere := regexp.MustCompile(`https?:|//[a-z]|src=|href=|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|\bon[a-z]+=| style=`)
	if found := elsewhere.FindString(known.Replace(body)); found != "" {
		t.Errorf("the page has %q", found)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin", "Set-Cookie": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("a", longestFind+1)
	for _, tc := range []struct {
		ask  string
		code int
		want Query
	}{
		{"GET /status/services", 200, Query{Limit: defaultLimit}},
		{"GET /status/services?find=Kube-System%2FDNS&wrong=1&offset=40&limit=7", 200, Query{Find: "kube-system/dns", Wrong: true, Offset: 40, Limit: 7}},
		{"GET /status/services?limit=1000000", 200, Query{Limit: mostServices}},
		{"GET /status/services?limit=0", 400, Query{}},
		{"GET /status/services?limit=-1", 400, Query{}},
		{"GET /status/services?offset=-1", 400, Query{}},
		{"GET /status/services?offset=99999999999999999999", 400, Query{}},
		{"GET /status/services?offset=x", 400, Query{}},
		{"GET /status/services?find=%zz", 400, Query{}},
		{"GET /status/services?find=" + long, 400, Query{}},
		{"POST /status/services", 405, Query{}},
		{"POST /status", 405, Query{}},
		{"DELETE /status/data", 405, Query{}},
		{"PUT /status/syncs", 405, Query{}},
		{"GET /status/", 404, Query{}},
		{"GET /", 404, Query{}},
		{"HEAD /status", 200, Query{}},
	} {
		var a asked
		method, path, _ := strings.Cut(tc.ask, " ")
		if w := do(a.port(), method, path); w.Code != tc.code || a.last != tc.want {
			t.Errorf("%s answers %d, and searches for %+v; want %d, %+v", tc.ask, w.Code, a.last, tc.code, tc.want)
		}
	}
	a := asked{err: errors.New("no luck")}
	if w := do(a.port(), http.MethodGet, servicesPath); w.Code != 500 || w.Body.String() != "no luck\n" {
		t.Errorf("an error answers %d %s", w.Code, w.Body)
	}
}

// TestDataIsNoMarkup: a browser must not render an answer as a page.
func TestDataIsNoMarkup(t *testing.T) {
	w := do((&asked{}).port(), http.MethodGet, dataPath)
	if strings.Contains(w.Body.String(), "<") || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v\n%s", w.Header(), w.Body)
	}
	var got view.Status
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Node != "</script>" {
		t.Errorf("%v: got %+v", err, got)
	}
	if want := `"health":"unhealthy"`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("%s is not in %s", want, w.Body)
	}
	if got, want := do((&asked{}).port(), http.MethodGet, syncsPath).Body.String(), `"kind":"full"`; !strings.Contains(got, want) {
		t.Errorf("syncs: got %s, want %s", got, want)
	}
}

// TestTextHasContrast computes the contrast of each colour of text on each background, in both schemes, as WCAG 2 defines it.
func TestTextHasContrast(t *testing.T) {
	const least = 4.5
	schemes := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(css, -1)
	if len(schemes) != 2 {
		t.Fatalf("there are %d schemes of colours", len(schemes))
	}
	for i, scheme := range schemes {
		light := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([\w-]+): #(\w{6});`).FindAllStringSubmatch(scheme[1], -1) {
			light[m[1]] = luminance(t, m[2])
		}
		for _, text := range []string{"text", "dim", "good", "bad", "warn", "accent"} {
			for _, back := range []string{"back", "card"} {
				a, b := light[text], light[back]
				if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < least {
					t.Errorf("scheme %d: the contrast of --%s on --%s is %.1f, want %.1f", i, text, back, got, least)
				}
			}
		}
	}
	// Text has no other colours.
	for _, m := range regexp.MustCompile(`[ {;]color: ([^;]*);`).FindAllStringSubmatch(css, -1) {
		if !regexp.MustCompile(`^(inherit|var\(--(text|dim|good|bad|warn)\))$`).MatchString(m[1]) {
			t.Errorf("text has the colour %s", m[1])
		}
	}
}

// luminance returns the relative luminance of a colour in hexadecimal digits, from 0 to 1.
func luminance(t *testing.T, digits string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(digits, 16, 32)
	lab.Must(t, err)
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		c := float64(n>>(16-8*i)&0xff) / 0xff
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// TestThePageIsAccessible checks the language, the title, the order of headings, and the label of each field.
func TestThePageIsAccessible(t *testing.T) {
	for _, want := range []string{`<html lang="en">`, "<title>kube-nftproxy</title>", `<meta name="viewport" content="width=device-width, initial-scale=1">`, "<noscript>"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	last := 0
	for _, m := range regexp.MustCompile(`<h([1-6])`).FindAllStringSubmatch(html, -1) {
		level, _ := strconv.Atoi(m[1])
		if level > last+1 || level == 1 && last > 0 {
			t.Errorf("a heading of level %d is after one of level %d", level, last)
		}
		last = level
	}
	for _, m := range regexp.MustCompile(`<input id="(\w+)"`).FindAllStringSubmatch(html, -1) {
		if !strings.Contains(html, `<label for="`+m[1]+`"`) && !regexp.MustCompile(`<label[^>]*><input id="`+m[1]+`"`).MatchString(html) {
			t.Errorf("the field %s has no label", m[1])
		}
	}
	// Each term names a number of the page.
	for _, m := range regexp.MustCompile(`<dt>([^<]*)</dt>`).FindAllStringSubmatch(html, -1) {
		if !strings.Contains(js, `add("`+m[1]+`"`) {
			t.Errorf("the term %s is not on the page", m[1])
		}
	}
}

// huge returns a Service with more data than a page shows.
func huge(n int) view.Service {
	s := view.Service{Namespace: "default", Name: fmt.Sprint("huge-", n)}
	for i := range 30 {
		p := view.ServicePort{Name: fmt.Sprint("p", i), Protocol: "tcp", Family: "IPv4", Why: strings.Repeat("w", 10*longestText)}
		for j := range 100 {
			f := view.Frontend{Address: fmt.Sprintf("203.0.113.%d:%d", j, i), Kind: "ExternalIP", Endpoints: 1, AllowedSources: make([]string, 100)}
			p.Frontends = append(p.Frontends, f)
		}
		for j := range 1000 {
			p.Endpoints = append(p.Endpoints, view.Endpoint{Address: fmt.Sprint(j), Cluster: j >= 500, Message: "not ready"})
		}
		s.Ports = append(s.Ports, p)
		s.Problems = append(s.Problems, strings.Repeat("x", 10*longestText))
		s.Unusable = append(s.Unusable, view.Endpoint{})
	}
	return s
}

func TestAnswersAreBounded(t *testing.T) {
	a := asked{found: Found{Total: 10000, Matching: 10000, NodeAddresses: make([]string, 1000)}}
	for i := range mostServices {
		a.found.Services = append(a.found.Services, huge(i))
	}
	const most = 512 << 10
	w := do(a.port(), http.MethodGet, servicesPath)
	if n := w.Body.Len(); n > most {
		t.Errorf("the answer has %d bytes, want at most %d", n, most)
	}
	var got services
	lab.Must(t, json.Unmarshal(w.Body.Bytes(), &got))
	if len(got.Services) != mostServices || got.Total != 10000 {
		t.Errorf("%d of %d Services", len(got.Services), got.Total)
	}
	for _, s := range got.Services {
		if n := len(s.Ports) + s.More; n != 30 {
			t.Errorf("%s: %d ports are listed", s.Name, n)
		}
		for _, p := range s.Ports {
			if f, e := len(p.Frontends)+p.MoreFrontends, len(p.Endpoints)+p.MoreEndpoints; f != 100 || e != 1000 || p.Count != 1000 {
				t.Errorf("%s: %d addresses and %d endpoints are listed", s.Name, f, e)
			}
		}
	}
	// Of the first Service, used and unused endpoints are listed.
	var used, unused int
	for _, e := range got.Services[0].Ports[0].Endpoints {
		if e.Cluster {
			used++
		} else {
			unused++
		}
	}
	lab.Same(t, []int{mostListed, mostListed}, []int{used, unused}, "endpoints that are used, and that aren't")
	// The caller's view is unchanged.
	if n := len(a.found.Services[0].Ports[0].Frontends[0].AllowedSources); n != 100 {
		t.Errorf("the view was cut to %d", n)
	}
}

// TestAllPagesHaveOneGate: after a search for one page, a search for another has to wait.
func TestAllPagesHaveOneGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Millisecond
		mux := http.NewServeMux()
		Install(mux, Config{
			Status:   func(context.Context) *view.Status { time.Sleep(takes); return &view.Status{} },
			Syncs:    func(context.Context) ([]view.Sync, error) { time.Sleep(takes); return nil, nil },
			Services: func(context.Context, Query) (*Found, error) { time.Sleep(takes); return &Found{}, nil },
		})
		for i, path := range []string{dataPath, syncsPath, servicesPath} {
			start, want := time.Now(), takes
			if i > 0 {
				want += share * takes
			}
			if w := do(mux, http.MethodGet, path); w.Code != http.StatusOK || time.Since(start) != want {
				t.Errorf("%s: %d after %v, want %v", path, w.Code, time.Since(start), want)
			}
		}
	})
}
