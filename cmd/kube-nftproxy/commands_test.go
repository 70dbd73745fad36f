package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// TestWhatIsACommand keeps flags alone, and the values of flags, from being taken for one.
func TestWhatIsACommand(t *testing.T) {
	for args, want := range map[string]bool{
		"":                                     false,
		"--config /etc/config.conf":            false,
		"--hostname-override status":           false,
		"--hostname_override status -v 4":      false,
		"--cleanup":                            false,
		"extra arg":                            false,
		"--version":                            false,
		"-h":                                   false,
		"status":                               true,
		"services default/web -o json":         true,
		"-v 2 status":                          true,
		"--hostname-override status verify":    true,
		"help status":                          true,
		"completion bash":                      true,
		"__complete services default/":         true,
		"__completeNoDesc services default/":   true,
		"trace 10.0.0.1 10.96.0.1:80":          true,
		"--feature-gates=A=true --init-only":   false,
		"--nodeport-addresses services,verify": false,
	} {
		root := newCommand()
		root.InitDefaultHelpCmd()
		list := strings.Fields(args)
		root.InitDefaultCompletionCmd(list...)
		if got := isCommand(root, list); got != want {
			t.Errorf("%q: a command is %v, want %v", args, got, want)
		}
	}
}

func TestWantedServices(t *testing.T) {
	for arg, want := range map[string][3]any{
		"":                 {"", "", false},
		"default/web":      {"default", "web", true},
		"default/web:http": {"default", "web", true},
		"web":              {"", "web", true},
		"default/":         {"default", "", false},
	} {
		var args []string
		if arg != "" {
			args = []string{arg}
		}
		namespace, name, single := wanted(args)
		if got := [3]any{namespace, name, single}; got != want {
			t.Errorf("%q: %v, want %v", arg, got, want)
		}
	}
}

func TestFormats(t *testing.T) {
	value := view.Services{Node: "n", NodePortAddresses: []string{}, Services: []view.Service{}}
	for format, want := range map[string]string{
		"table": "plain\n", "wide": "wide\n", "yaml": "node: \"n\"\nnodePortAddresses: []\nservices: []\n",
		"json": "{\n  \"node\": \"n\",\n  \"nodePortAddresses\": [],\n  \"services\": []\n}\n",
	} {
		var out output
		cmd := &cobra.Command{}
		out.flags(cmd)
		if err := cmd.Flags().Parse([]string{"-o", format}); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		err := out.print(&b, &value, func(p *view.Printer) { p.Printf("%s\n", map[bool]string{false: "plain", true: "wide"}[p.Wide]) })
		if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
			t.Errorf("-o %s: %v (-want +got):\n%s", format, err, diff)
		}
	}
	var out output
	cmd := &cobra.Command{}
	out.flags(cmd)
	if err := cmd.Flags().Parse([]string{"-o", "xml"}); err == nil {
		t.Error("-o xml is accepted")
	}
}

// TestColours are on where somebody looks, unless they say no.
func TestColours(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, c := range []struct {
		color, noColor, term string
		to                   io.Writer
		want                 bool
	}{
		{"auto", "", "xterm", terminal, true},
		{"auto", "1", "xterm", terminal, false},
		{"auto", "", "dumb", terminal, false},
		{"auto", "", "xterm", &bytes.Buffer{}, false},
		{"never", "", "xterm", terminal, false},
		{"always", "1", "dumb", &bytes.Buffer{}, true},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		out := output{format: formatTable, color: c.color}
		if got := out.printer(c.to).Color; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for want, err := range map[int]error{exitFine: nil, exitWrong: errWrong, exitUnable: errors.New("nobody answers")} {
		root := &cobra.Command{Use: "x"}
		root.AddCommand(&cobra.Command{Use: "y", RunE: func(*cobra.Command, []string) error { return err }})
		root.SetArgs([]string{"y"})
		if got := execute(root); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}

func TestRecentProblems(t *testing.T) {
	var r recent
	for i := range 250 {
		r.note(model.Problem{Field: strings.Repeat("x", i)})
	}
	list := r.all()
	if len(list) != 200 || len(list[0].Problem.Field) != 50 || list[0].Time.IsZero() {
		t.Errorf("%d problems are remembered, the first of length %d; want the last 200", len(list), len(list[0].Problem.Field))
	}
}

// TestArchiveSaysWhatIsMissing keeps the rest where one part can't be had.
func TestArchiveSaysWhatIsMissing(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	a := &archive{gzip: z, tar: tar.NewWriter(z)}
	a.addValue("status", nil, nil, errors.New("too busy"))
	a.add("versions.txt", []byte("v1"), nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		content, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		got[h.Name] = string(content)
	}
	want := map[string]string{"kube-nftproxy/status.json": "\ncan't be had: too busy\n", "kube-nftproxy/versions.txt": "v1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
