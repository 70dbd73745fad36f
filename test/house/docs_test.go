package house

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// pages returns the documents.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range files(t) {
		if path.Ext(name) == ".md" {
			names = append(names, name)
		}
	}
	if len(names) < 15 {
		t.Fatalf("found %d pages, want more: is %s the root?", len(names), root)
	}
	return names
}

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	linked   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	ourPages = regexp.MustCompile(`https://github\.com/kube-nftproxy/kube-nftproxy/blob/main/(\S+)`)
	pagePath = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(#[a-z0-9-]+)?`)
)

// anchors returns the anchors of a page's headings, as GitHub derives them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		unique := anchor
		for n := 1; found[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		found[unique] = true
	}
	return found
}

// follow returns an error unless a link leads to an existing file or folder, and to an existing heading if it names one.
func follow(from, link string) error {
	name, anchor, anchored := strings.Cut(link, "#")
	target := from
	if name != "" {
		target = path.Join(path.Dir(from), name)
	}
	info, err := os.Stat(filepath.Join(root, target))
	if err != nil || !anchored {
		return err
	}
	if info.IsDir() || path.Ext(target) != ".md" {
		return fmt.Errorf("%s has no headings", target)
	}
	text, err := os.ReadFile(filepath.Join(root, target))
	if err == nil && !anchors(string(text))[anchor] {
		err = fmt.Errorf("%s has no heading for #%s", target, anchor)
	}
	return err
}

// TestLinksResolve follows the links of pages, and links to the project's pages in other files.
func TestLinksResolve(t *testing.T) {
	n := 0
	check := func(name, from, link string) {
		n++
		lab.Check(t, follow(from, link), "%s: link %s", name, link)
	}
	for _, name := range pages(t) {
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(mustRead(t, name), ""), -1) {
			if !strings.Contains(m[1], "://") {
				check(name, name, m[1])
			}
		}
	}
	for _, name := range files(t) {
		text := mustRead(t, name)
		if strings.HasPrefix(name, "deploy/") || strings.HasPrefix(name, ".github/") {
			for _, m := range ourPages.FindAllStringSubmatch(text, -1) {
				check(name, "README.md", strings.Trim(m[1], `"',)`))
			}
		}
		if path.Ext(name) != ".md" && name != "test/house/docs_test.go" {
			for _, link := range pagePath.FindAllString(text, -1) {
				check(name, "README.md", link)
			}
		}
	}
	if n < 300 {
		t.Errorf("only %d links", n)
	}
}

// TestIndexListsEveryPage requires a link to each page in docs from docs/README.md, or from the list of decisions, and a link to the
// index from README.md.
func TestIndexListsEveryPage(t *testing.T) {
	const index, decisions = "docs/README.md", "docs/decisions/README.md"
	listed := map[string]bool{}
	for _, from := range []string{"README.md", index, decisions} {
		if from != "README.md" && !listed[from] {
			t.Errorf("no link to %s", from)
		}
		for _, m := range linked.FindAllStringSubmatch(mustRead(t, from), -1) {
			name, _, _ := strings.Cut(m[1], "#")
			if to := path.Join(path.Dir(from), name); from != "README.md" || to == index {
				listed[to] = true
			}
		}
	}
	for _, name := range pages(t) {
		if strings.HasPrefix(name, "docs/") && !listed[name] {
			t.Errorf("%s does not list %s", index, name)
		}
	}
}

// coined are terms of docs/glossary.md that no reader knows from Kubernetes, as they occur in sentences.
var coined = map[string]*regexp.Regexp{
	"adopt":          regexp.MustCompile(`\badopt(s|ed)?\b`),
	"drift":          regexp.MustCompile(`\bdrift\b`),
	"foreign change": regexp.MustCompile(`\b[Ff]oreign changes?\b`),
	"frontend":       regexp.MustCompile(`\b[Ff]rontends?\b`),
	"lease":          regexp.MustCompile(`\b[Ll]ease\b`),
	"leftover":       regexp.MustCompile(`\b[Ll]eftovers?\b`),
	"service port":   regexp.MustCompile(`\b[Ss]ervice ports?\b`),
	"short circuit":  regexp.MustCompile(`\b[Ss]hort[ -]circuit\b`),
	"slot":           regexp.MustCompile(`\b[Ss]lots?\b`),
	"stale flow":     regexp.MustCompile(`\b[Ss]tale flows?\b`),
	"standing by":    regexp.MustCompile(`\b[Ss]tand(s|ing)? by\b`),
}

// unexplained returns the coined terms that a page uses before it links to the glossary.
func unexplained(text string) (terms []string) {
	text = regexp.MustCompile("`[^`\n]*`").ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	if link := strings.Index(text, "glossary.md"); link >= 0 {
		text = text[:strings.LastIndex(text[:link], "\n\n")+1] // the paragraph or table with the link explains its own terms
	}
	for term, use := range coined {
		if use.MatchString(text) {
			terms = append(terms, term)
		}
	}
	slices.Sort(terms)
	return terms
}

// TestTermsAreExplained requires a link to the glossary on each page in docs with a coined term, not after the paragraph of
// its first use. It excludes semantics.md, which a test writes.
func TestTermsAreExplained(t *testing.T) {
	const glossary = "docs/glossary.md"
	for term := range coined {
		if !strings.Contains(mustRead(t, glossary), "**"+term+"**") {
			t.Errorf("%s does not define %q", glossary, term)
		}
	}
	for _, name := range pages(t) {
		if path.Dir(name) != "docs" || name == glossary || name == "docs/semantics.md" {
			continue
		}
		if terms := unexplained(mustRead(t, name)); len(terms) > 0 {
			t.Errorf("%s uses %s before a link to the glossary", name, strings.Join(terms, ", "))
		}
	}
	for text, want := range map[string]int{
		"A slot.\n\nSee the [glossary](glossary.md).\n\nA lease.\n":     1,
		"A lease.\n\nA [slot](glossary.md) of a frontend.\n\nA slot.\n": 1,
		"See the [glossary](glossary.md).\n\nA slot.\n":                 0,
		"A slot and a lease.\n":                                         2,
		"`slot`\n":                                                      0,
	} {
		if got := unexplained(text); len(got) != want {
			t.Errorf("%q: %q are not explained, want %d terms", text, got, want)
		}
	}
}

func TestAnchors(t *testing.T) {
	found := anchors("# Those of `nft`: 1.0.6\n```\n# not this\n```\n## kubeadm: go back\n## kubeadm: go back\n## k3s, RKE2\n")
	for _, want := range []string{"those-of-nft-106", "kubeadm-go-back", "kubeadm-go-back-1", "k3s-rke2"} {
		if !found[want] {
			t.Errorf("no %q among %v", want, found)
		}
	}
	lab.Same(t, 4, len(found), "%v", found)
	for link, ok := range map[string]bool{
		"docs/faq.md": true, "docs": true, "docs/none.md": false, "#limits": true, "#none": false, "docs/faq.md#questions": true, "docs/faq.md#none": false, "docs#x": false,
	} {
		if err := follow("README.md", link); (err == nil) != ok {
			t.Errorf("%s: %v", link, err)
		}
	}
}

var (
	metric = regexp.MustCompile(`\b(?:kubeproxy|kubenftproxy)_[a-z0-9_]*`)
	inRow  = regexp.MustCompile("(?m)^\\| `(kube(?:nft)?proxy_[a-z0-9_]+)` \\| \\w+ \\|")
)

// TestNamedMetricsExist compares the metrics in pages and deploy/ with the tables of docs/metrics.md, which pkg/beside/metrics writes.
func TestNamedMetricsExist(t *testing.T) {
	known := map[string]bool{}
	for _, m := range inRow.FindAllStringSubmatch(mustRead(t, "docs/metrics.md"), -1) {
		known[m[1]] = true
	}
	named := 0
	for _, name := range files(t) {
		if path.Ext(name) != ".md" && !strings.HasPrefix(name, "deploy/") {
			continue
		}
		for _, m := range metric.FindAllString(mustRead(t, name), -1) {
			named++
			if !isMetric(known, m) {
				t.Errorf("%s: there is no metric %s", name, m)
			}
		}
	}
	if len(known) < 30 || named < 100 {
		t.Errorf("%d metrics are known, and %d times one is named: does this test still look in the right place?", len(known), named)
	}
}

// isMetric reports whether a name is a metric, one of its series, or the prefix of one.
func isMetric(known map[string]bool, name string) bool {
	if strings.HasSuffix(name, "_") {
		for k := range known {
			if strings.HasPrefix(k, name) {
				return true
			}
		}
		return false
	}
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if short, ok := strings.CutSuffix(name, suffix); ok && known[short] {
			return true
		}
	}
	return false
}

func TestIsMetric(t *testing.T) {
	known := map[string]bool{"kubenftproxy_a_b": true}
	for name, want := range map[string]bool{
		"kubenftproxy_a_b": true, "kubenftproxy_a_b_sum": true, "kubenftproxy_": true, "kubenftproxy_a": false, "kubenftproxy_b_": false, "kubenftproxy_a_b_max": false,
	} {
		lab.Same(t, want, isMetric(known, name), "%s: isMetric(known, name)", name)
	}
}

// othersFlags are other programs' flags that appear without a command.
var othersFlags = map[string]string{
	"--register-with-taints":    "the kubelet",
	"--metric-labels-allowlist": "kube-state-metrics",
	"--run-service-proxy":       "kube-router",
	"--to-revision":             "kubectl",
	"--wait":                    "Helm",
	"--reuse-values":            "Helm",
	"--service-node-port-range": "kube-apiserver", "--allow-privileged": "kube-apiserver", "--kube-proxy-config": "AKS",
	"--goaway-chance": "kube-apiserver", "--max-endpoints-per-slice": "kube-controller-manager",
	"--endpointslice-updates-batch-period": "kube-controller-manager",
	"--all":                                "the kubectl plugin", "--context": "the kubectl plugin", "--container": "the kubectl plugin", "--parallel": "the kubectl plugin",
	"--metrics-port": "kube-proxy, hidden; accepted here", "--ignore-external-ips": "the test's own",
}

var (
	code     = regexp.MustCompile("`([^`\n]+)`")
	flagName = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z0-9-]+)`)
	ours     = regexp.MustCompile(`^(--|((bin/)?kube-nftproxy|status|services|trace|verify|watch|bundle|render|diff|preflight|version|completion)\b)`)
)

// TestNamedFlagsExist looks up the flags in pages, alone or behind the program's name, among those of the program and its
// commands.
func TestNamedFlagsExist(t *testing.T) {
	program := program.BuildForTest(t)
	known := map[string]bool{}
	for _, command := range []string{"", "status", "services", "trace", "verify", "watch", "bundle", "render", "diff", "preflight", "version", "completion"} {
		for _, m := range usage.FindAllStringSubmatch(mustSay(t, program, append(strings.Fields(command), "--help")...), -1) {
			known["--"+m[1]] = true
		}
	}
	for _, name := range ignoredFlags() {
		known["--"+name] = true
	}
	named, others := 0, map[string]bool{}
	check := func(name, text string) {
		if !ours.MatchString(text) {
			return
		}
		for _, m := range flagName.FindAllStringSubmatch(text, -1) {
			named++
			others[m[1]] = true
			if !known[m[1]] && othersFlags[m[1]] == "" {
				t.Errorf("%s: there is no flag %s (%s)", name, m[1], text)
			}
		}
	}
	for _, name := range pages(t) {
		text := mustRead(t, name)
		for _, m := range code.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			check(name, m[1])
		}
		for _, c := range page.Commands(text) {
			check(name, c.Text)
		}
	}
	for name := range othersFlags {
		if !others[name] || known[name] {
			t.Errorf("no page names %s, or it is ours now", name)
		}
	}
	if named < 50 {
		t.Errorf("only %d times a flag is named", named)
	}
}

var (
	making      = regexp.MustCompile(`^((?:[A-Z_]+=\S+ )*)make((?: [^|;&]+)?)`)
	testCommand = regexp.MustCompile(`^(?:sudo )?((?:[A-Z_]+=\S+ )*)go test( [^|;&]+)`)
)

// TestNamedTargetsExist looks up the make targets and variables in pages, in Makefile and hack/.
func TestNamedTargetsExist(t *testing.T) {
	makefile, scripts := mustRead(t, "Makefile"), ""
	for _, name := range files(t) {
		if strings.HasPrefix(name, "hack/") && path.Ext(name) == ".sh" {
			scripts += mustRead(t, name)
		}
	}
	n := 0
	for _, name := range pages(t) {
		for _, c := range page.Commands(mustRead(t, name)) {
			m := making.FindStringSubmatch(c.Text)
			if m == nil {
				continue
			}
			n++
			for _, word := range strings.Fields(m[1] + " " + m[2]) {
				if variable, _, ok := strings.Cut(word, "="); ok {
					if !strings.Contains(scripts, "${"+variable+":") && !strings.Contains(scripts, "$"+variable) {
						t.Errorf("%s:%d: nothing in hack/ uses %s", name, c.Line, variable)
					}
				} else if !strings.Contains(makefile, "\n"+word+": ") {
					t.Errorf("%s:%d: there is no target %s", name, c.Line, word)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d commands of make", n)
	}
}

// TestNamedTestsExist looks up the packages and tests that pages run, and other names of tests.
func TestNamedTestsExist(t *testing.T) {
	inPackage, everywhere := map[string][]string{}, map[string]bool{}
	for _, s := range sources(t) {
		if !s.test() {
			continue
		}
		for _, decl := range s.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				inPackage["./"+s.dir] = append(inPackage["./"+s.dir], f.Name.Name)
				everywhere[f.Name.Name] = true
			}
		}
	}
	run := regexp.MustCompile(`-run '?([^' /]+)`)
	n := 0
	for _, name := range pages(t) {
		text := mustRead(t, name)
		for _, c := range page.Commands(text) {
			m := testCommand.FindStringSubmatch(c.Text)
			if m == nil {
				continue
			}
			n++
			for _, word := range strings.Fields(m[2]) {
				if strings.HasPrefix(word, "./") && inPackage[word] == nil && word != "./..." {
					t.Errorf("%s:%d: there are no tests in %s", name, c.Line, word)
				}
				if r := run.FindStringSubmatch(m[2]); r != nil && strings.HasPrefix(word, "./") {
					pattern := regexp.MustCompile(r[1])
					if !slices.ContainsFunc(inPackage[word], pattern.MatchString) {
						t.Errorf("%s:%d: %s has no test %s", name, c.Line, word, r[1])
					}
				}
			}
		}
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)[`/]").FindAllStringSubmatch(text, -1) {
			n++
			if !everywhere[m[1]] {
				t.Errorf("%s: there is no %s", name, m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d tests are named", n)
	}
}

// TestNamedFilesExist looks up the files and folders of this repository in pages.
func TestNamedFilesExist(t *testing.T) {
	named := regexp.MustCompile("`((?:cmd|deploy|docs|hack|pkg|test)/[A-Za-z0-9_./-]+)`")
	n := 0
	for _, name := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(mustRead(t, name), -1) {
			n++
			lab.Check(t, lab.Err(os.Stat(filepath.Join(root, m[1]))), "%s", name)
		}
	}
	if n < 50 {
		t.Errorf("only %d files are named", n)
	}
}
