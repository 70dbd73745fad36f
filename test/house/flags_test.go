package house

import (
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

var update = flag.Bool("update", false, "rewrite tables in docs, the picture of the README, the schema of the chart")

func TestPageHasTheFlagsOfTheProgram(t *testing.T) {
	checkPart(t, "docs/flags.md", "flags", flagTable(mustHelp(t)))
	list := ""
	for _, name := range ignoredFlags() {
		list += "- `--" + name + "`\n"
	}
	checkPart(t, "docs/flags.md", "ignored flags", list)
}

// ignoredFlags returns the names of the flags that the help does not list, because the program ignores them.
func ignoredFlags() (names []string) {
	sets := config.NewOptions().FlagSets()
	sets.FlagSet(config.IgnoredFlags).VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

func TestPageHasTheAnnotations(t *testing.T) {
	checkPart(t, "docs/annotations.md", "annotations", annotationTable(model.Annotations))
}

// checkPart compares the part of a page with what the program says, or writes it there.
func checkPart(t *testing.T, name, part, want string) {
	t.Helper()
	if *update {
		lab.Must(t, page.Write(filepath.Join(root, name), part, want))
	}
	got, err := page.Part(mustRead(t, name), part)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	lab.Same(t, want, got, "%s: the table is not what the program says; run make update", name)
}

// annotationTable returns a Markdown table of annotations.
func annotationTable(list []model.Annotation) string {
	var b strings.Builder
	b.WriteString("| Annotation | On | Values | Meaning | Page |\n|---|---|---|---|---|\n")
	for _, a := range list {
		on, meaning := "Service", a.Meaning
		if a.OfSlices() {
			on = "EndpointSlice"
		}
		if a.Alias != "" {
			meaning += ", if `" + a.Alias + "` is not set"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | [%s](%s) |\n", a.Name, on, a.Values, meaning, a.Page, a.Page)
	}
	return b.String()
}

// mustHelp returns the help of the program, built from this source.
func mustHelp(t *testing.T) string {
	t.Helper()
	return mustSay(t, program.BuildForTest(t), "--help")
}

// mustSay returns the output of the program.
func mustSay(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// group matches the heading of a group of flags in the help, and usage the line of a flag: name, meaning, default.
var group = regexp.MustCompile(`^([A-Z][\w -]* flags):$`)

var usage = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)(?: \S+)? {2,}(.*?)(?: \(default (.*)\))?$`)

// flagTable returns a Markdown table of the help.
func flagTable(help string) string {
	var b strings.Builder
	b.WriteString("| Flag | Default | Meaning |\n|---|---|---|\n")
	for line := range strings.Lines(help) {
		line = strings.TrimSuffix(line, "\n")
		if m := group.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(&b, "| **%s** | | |\n", m[1])
			continue
		}
		m := usage.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, meaning, value := m[1], strings.ReplaceAll(m[2], "|", `\|`), strings.Trim(m[3], `"[]`)
		if name == "help" {
			continue
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", name, value, meaning)
	}
	return b.String()
}

func TestFlagTable(t *testing.T) {
	help := "Pod network flags:\n\n" +
		"      --cluster-cidr string     Prefixes of pods: a|b.\n" +
		"  -h, --help                    help for kube-nftproxy\n" +
		"      --name strings            Names. (default [primary])\n" +
		"  -v, --v Level                 verbosity\n"
	want := "| Flag | Default | Meaning |\n|---|---|---|\n| **Pod network flags** | | |\n" +
		"| `--cluster-cidr` |  | Prefixes of pods: a\\|b. |\n" +
		"| `--name` | `primary` | Names. |\n" +
		"| `--v` |  | verbosity |\n"
	lab.Same(t, want, flagTable(help), "")
}
