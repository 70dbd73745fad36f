package command

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// TestWhatIsACommand: flags alone, and the values of flags, are no commands.
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
		root := newCommand("dev", nil)
		root.InitDefaultHelpCmd()
		list := strings.Fields(args)
		root.InitDefaultCompletionCmd(list...)
		if got := isCommand(root, list); got != want {
			t.Errorf("%q: a command is %v, want %v", args, got, want)
		}
	}
}

// TestMistypedCommands exit with 2 and name the command; other arguments stay errors of the daemon.
func TestMistypedCommands(t *testing.T) {
	for args, similar := range map[string]string{
		"staus": "status", "staus -o json": "status", "servces default/web": "services", "veriffy": "verify",
		"status": "", "extra arg": "", "": "", "-v 2 staus": "", "--staus": "",
	} {
		root := newCommand("dev", nil)
		err := mistyped(root, strings.Fields(args))
		if (err != nil) != (similar != "") || err != nil && !strings.Contains(err.Error(), similar) {
			t.Errorf("%q: %v, want an error with %q", args, err, similar)
		}
	}
	before := os.Args
	t.Cleanup(func() { os.Args = before })
	os.Args = []string{"kube-nftproxy", "staus"}
	if code := Run("dev", nil); code != exitUnable {
		t.Errorf("staus: exit code %d, want %d", code, exitUnable)
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

// TestColours: colours are on by default on a terminal.
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
