package house

import (
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

var update = flag.Bool("update", false, "rewrite the table in docs/flags.md, the picture of the README, and the schema of the chart")

const flagsPage = "docs/flags.md"

func TestPageHasTheFlagsOfTheProgram(t *testing.T) {
	want := flagTable(mustHelp(t))
	if *update {
		if err := page.Write(filepath.Join(root, flagsPage), "flags", want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := page.Part(mustRead(t, flagsPage), "flags")
	if err != nil {
		t.Fatalf("%s: %v", flagsPage, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: the table is not what the program says; run make update (-want +got):\n%s", flagsPage, diff)
	}
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

// usage matches a line of the help: name, meaning, default.
var usage = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)(?: \S+)? {2,}(.*?)(?: \(default (.*)\))?$`)

// flagTable returns a Markdown table of the help.
func flagTable(help string) string {
	var b strings.Builder
	b.WriteString("| Flag | Default | Meaning |\n|---|---|---|\n")
	for _, m := range usage.FindAllStringSubmatch(help, -1) {
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
	help := "Flags:\n" +
		"      --cluster-cidr string     Prefixes of pods: a|b.\n" +
		"  -h, --help                    help for kube-nftproxy\n" +
		"      --name strings            Names. (default [primary])\n" +
		"  -v, --v Level                 verbosity\n"
	want := "| Flag | Default | Meaning |\n|---|---|---|\n" +
		"| `--cluster-cidr` |  | Prefixes of pods: a\\|b. |\n" +
		"| `--name` | `primary` | Names. |\n" +
		"| `--v` |  | verbosity |\n"
	if diff := cmp.Diff(want, flagTable(help)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
