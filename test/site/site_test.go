//go:build site

// Package site tests the pages as a site, in a real browser.
package site

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/browser"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	root = "../.."
	// prefix is the path of the site on its server: a site of a project is rarely at the root.
	prefix = "/kube-nftproxy/"
	source = "https://github.com/kube-nftproxy/kube-nftproxy"
)

// visit is a browser, and a server of the site.
type visit struct {
	*testing.T
	*browser.Browser
	server string
}

// shown is a page in the browser.
type shown struct {
	Title         string
	Links, Images []string
	// Broken are pictures that the browser cannot show, Anchors the ids of the page.
	Broken, Anchors []string
}

// TestSite builds the site, and visits each page.
func TestSite(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), root+"/hack/site.sh").CombinedOutput(); err != nil {
		t.Fatalf("hack/site.sh: %v\n%s", err, out)
	}
	folder := root + "/bin/site"
	server := httptest.NewServer(http.StripPrefix(prefix, http.FileServer(http.Dir(folder))))
	t.Cleanup(server.Close)
	v := &visit{t, browser.Open(t, func(f func() error) error { return f() }), server.URL + prefix}
	pages := map[string]shown{}
	err := filepath.WalkDir(folder, func(file string, _ fs.DirEntry, err error) error {
		if path.Ext(file) == ".html" {
			name, _ := filepath.Rel(folder, file)
			pages[name] = v.visit(name)
		}
		return err
	})
	if err != nil || len(pages) < 45 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	v.checkPages(pages)
	v.checkLinks(pages)
	v.load("index.html")
	v.CheckDarkMode()
	v.checkNavigation(pages)
	v.checkSearch()
	v.checkCopy()
}

// checkCopy clicks the button of a block of code: it copies the commands of a console without their output.
func (v *visit) checkCopy() {
	v.Helper()
	v.load("docs/debugging.html")
	v.do(`navigator.clipboard.writeText = async text => { window.copied = text }`)
	v.do(`[...document.querySelectorAll(".block")].find(b => b.textContent.includes("$ kube-nftproxy diff -f /etc")).lastChild.click()`)
	v.await(`window.copied == "kube-nftproxy diff -f /etc/kube-nftproxy/planned"`)
}

func (v *visit) load(name string) {
	v.Helper()
	v.Load(v.server + name)
}

// visit loads a page, and checks its width.
func (v *visit) visit(name string) (page shown) {
	v.Helper()
	v.load(name)
	v.CheckWidth()
	v.Evaluate(&page, `(all => ({Title: document.title, Links: all("a[href]").map(e => e.href), Images: all("img").map(e => e.src),
		Broken: all("img").filter(e => !e.complete || !e.naturalWidth).map(e => e.src), Anchors: all("[id]").map(e => e.id)}))(s => [...document.querySelectorAll(s)])`)
	if len(page.Broken) > 0 {
		v.Errorf("%s: pictures that the browser cannot show: %v", name, page.Broken)
	}
	return page
}

// checkPages requires a page for each document in docs, with its heading as title.
func (v *visit) checkPages(pages map[string]shown) {
	v.Helper()
	err := filepath.WalkDir(root+"/docs", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".md" {
			return err
		}
		name, _ := filepath.Rel(root, file)
		name = strings.TrimSuffix(name, ".md")
		if path.Base(name) == "README" {
			name = path.Dir(name) + "/index"
		}
		text, err := os.ReadFile(file)
		heading, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		heading = strings.ReplaceAll(heading, "`", "")
		if got := pages[name+".html"].Title; got != heading+" · kube-nftproxy" {
			v.Errorf("%s: the title of its page is %q, want %q", file, got, heading)
		}
		return err
	})
	if err != nil {
		v.Error(err)
	}
}

// checkLinks follows the links of all pages, within the site and into the repository. It follows no other link.
func (v *visit) checkLinks(pages map[string]shown) {
	v.Helper()
	internal := 0
	for name, page := range pages {
		for _, link := range page.Links {
			if file, ok := strings.CutPrefix(link, source+"/blob/main/"); ok {
				file, _, _ = strings.Cut(file, "#")
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					v.Errorf("%s: link %s: %v", name, link, err)
				}
				continue
			}
			to, ok := strings.CutPrefix(link, v.server)
			if !ok {
				if u, err := url.Parse(link); err != nil || strings.HasPrefix(link, "http://127.") || u.Scheme == "file" {
					v.Errorf("%s: link %s leads neither into the site nor to another one", name, link)
				}
				continue
			}
			internal++
			to, anchor, _ := strings.Cut(to, "#")
			if to == "" || strings.HasSuffix(to, "/") { // the server redirects from index.html
				to += "index.html"
			}
			target, ok := pages[to]
			if !ok {
				v.Errorf("%s: link to %s, which is not a page", name, to)
			} else if anchor, _ = url.PathUnescape(anchor); anchor != "" && !slices.Contains(target.Anchors, anchor) {
				v.Errorf("%s: link to %s#%s, which is not a heading", name, to, anchor)
			}
		}
	}
	if internal < 3000 {
		v.Errorf("only %d links within the site", internal)
	}
}

// click clicks the element of a selector, which leads to a page.
func (v *visit) click(selector, page string) {
	v.Helper()
	// A timeout, because a call fails if its page is left meanwhile.
	v.AwaitLoad(func() { v.do(fmt.Sprintf("setTimeout(() => document.querySelector(%s).click())", quote(selector))) })
	v.await("location.href.split('#')[0] == " + quote(v.server+page))
}

func (v *visit) do(statement string) {
	v.Helper()
	var done bool
	v.Evaluate(&done, "("+statement+", true)")
}

// await waits until an expression is true.
func (v *visit) await(expression string) {
	v.Helper()
	deadline := time.Now().Add(time.Minute)
	for is := false; !is; {
		if v.Evaluate(&is, expression); !is && time.Now().After(deadline) {
			v.Fatalf("not true after a minute: %s", expression)
		}
	}
}

// checkNavigation opens a page by the list of pages, in a wide and in a narrow window, and compares the list with docs/README.md.
func (v *visit) checkNavigation(pages map[string]shown) {
	v.Helper()
	const visible = `document.querySelector("nav").checkVisibility()`
	var sections, headings []string
	v.Evaluate(&sections, `[...document.querySelectorAll("nav summary")].map(e => e.textContent)`)
	index, err := os.ReadFile(root + "/docs/README.md")
	lab.Must(v, err)
	for _, part := range strings.Split(string(index), "\n## ")[1:] {
		heading, _, _ := strings.Cut(part, "\n")
		headings = append(headings, heading)
	}
	if !slices.Equal(sections, headings) {
		v.Errorf("sections of the list of pages: %q, want %q", sections, headings)
	}
	for _, width := range []int{1280, 400} {
		v.Resize(width)
		v.load("index.html")
		if width == 400 {
			var wide bool
			if v.Evaluate(&wide, visible); wide {
				v.Error("the list of pages is visible in a narrow window before a click")
			}
			v.do(`document.getElementById("menu").click()`)
		}
		v.await(visible)
		v.click(`nav a[href$="sizing.html"]`, "docs/sizing.html")
		v.await(`document.querySelector("nav [aria-current]").textContent == ` + quote(strings.TrimSuffix(pages["docs/sizing.html"].Title, " · kube-nftproxy")))
		v.await(`document.querySelector("nav [aria-current]").closest("details").open`)
	}
}

// checkSearch types words, and follows the first result.
func (v *visit) checkSearch() {
	v.Helper()
	for _, width := range []int{1280, 400} {
		v.Resize(width)
		v.load("docs/decisions/index.html")
		v.do(`document.getElementById("search").focus()`)
		v.Call("Input.insertText", map[string]any{"text": "Loopback NODE"}, nil)
		v.await(`/loopback/i.test(document.querySelector("#found a")?.textContent)`)
		v.CheckWidth()
		v.Resize(width)
		var href string
		v.Evaluate(&href, `document.querySelector("#found a").href`)
		to, anchor, _ := strings.Cut(strings.TrimPrefix(href, v.server), "#")
		if anchor != "node-ports-on-loopback" {
			v.Errorf("the first result is %s, want the section about node ports on loopback", href)
		}
		v.click("#found a", to)
		v.await(`location.hash == ` + quote("#"+anchor) + ` && document.getElementById(location.hash.slice(1)).getBoundingClientRect().top > document.querySelector("header").getBoundingClientRect().bottom - 1`)
	}
	for text, want := range map[string]string{"qqqq": "Sections found: 0", "<img src=x onerror=alert(1)>": "Sections found: 0", "KubeNftproxyTablesTouched": "› KubeNftproxyTablesTouched"} {
		v.load("index.html")
		v.do(`document.getElementById("search").focus()`)
		v.Call("Input.insertText", map[string]any{"text": text}, nil)
		v.await(`document.getElementById("found").textContent.includes(` + quote(want) + `)`)
	}
}

// quote returns a text as an expression of JavaScript.
func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(quoted)
}
